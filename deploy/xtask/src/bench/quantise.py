# Arguments: model, new file, llama.cpp's number of the format. Only the weights change.
import sys

import llama_cpp as l

params = l.llama_model_quantize_default_params()
params.ftype = int(sys.argv[3])
params.allow_requantize = True
sys.exit(l.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
