//! One safetensors file: a header that says where each tensor lies, and the tensors.
//!
//! The header is read by the crate of the format's makers, which refuses tensors that overlap, leave gaps or end
//! beyond the file; what is added here is a bound on its size and the element types that the engine knows.

use std::collections::HashMap;
use std::ops::Range;

use ::safetensors::{Dtype, SafeTensors};

use crate::tensor_kind::TensorKind;

/// Largest header, bytes; that of a model with a thousand tensors has a tenth of a megabyte.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Most dimensions of a tensor, as in GGUF files.
const DIMENSIONS_MAX: usize = 4;

/// Why a file is not a safetensors file that can be read.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The header is longer than any real one.
    #[error("its header has {bytes} bytes, at most {HEADER_BYTES_MAX} are accepted")]
    HeaderTooLarge {
        /// As stated.
        bytes: u64,
    },
    /// The header is cut short or contradicts itself or the file.
    #[error("it is cut short or damaged: {0}")]
    Damaged(#[from] ::safetensors::SafeTensorError),
    /// An element type that the engine does not compute with.
    #[error("tensor `{tensor}` has type {kind:?}, which is not supported (F32, F16 and BF16 are)")]
    Kind {
        /// The tensor.
        tensor: String,
        /// Its type.
        kind: Dtype,
    },
    /// No dimensions, too many, or one of size 0.
    #[error("tensor `{tensor}` has an impossible shape {shape:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// As read.
        shape: Vec<usize>,
    },
}

/// Where a tensor lies in its file.
#[derive(Debug)]
pub(super) struct Place {
    /// The fastest-changing dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) kind: TensorKind,
    pub(super) bytes: Range<usize>,
}

/// The tensors of a file, by name.
pub(super) fn read(file: &[u8]) -> Result<HashMap<String, Place>, SafetensorsError> {
    if let Some(&length) = file.first_chunk::<8>() {
        let bytes = u64::from_le_bytes(length);
        if bytes > HEADER_BYTES_MAX {
            return Err(SafetensorsError::HeaderTooLarge { bytes });
        }
    }
    let (header_bytes, metadata) = SafeTensors::read_metadata(file)?;
    let data = 8 + header_bytes;
    let mut places = HashMap::new();
    for (tensor, info) in metadata.tensors() {
        let number = match info.dtype {
            Dtype::F32 => 0,
            Dtype::F16 => 1,
            Dtype::BF16 => 30,
            kind => return Err(SafetensorsError::Kind { tensor, kind }),
        };
        let shape: Vec<usize> = info.shape.iter().rev().copied().collect();
        let (false, false, true) = (shape.is_empty(), shape.contains(&0), shape.len() <= DIMENSIONS_MAX) else {
            return Err(SafetensorsError::Shape { tensor, shape: info.shape.clone() });
        };
        // INVARIANT: the three numbers are in the table of kinds.
        let kind = TensorKind::from_number(number).unwrap_or(TensorKind::F32);
        let (from, to) = info.data_offsets;
        places.insert(tensor, Place { shape, kind, bytes: data + from..data + to });
    }
    Ok(places)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file with this header and so many bytes behind it.
    pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn error(header: &str, bytes: usize) -> String {
        read(&file(header, &vec![0; bytes])).unwrap_err().to_string()
    }

    #[test]
    fn dimensions_come_in_the_other_order() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
        let places = read(&file(header, &[0; 12])).unwrap();
        let place = &places["a"];
        assert_eq!((place.shape.as_slice(), place.kind.name()), ([3, 2].as_slice(), "BF16"));
        assert_eq!(place.bytes, 8 + header.len()..8 + header.len() + 12);
    }

    #[test]
    fn what_does_not_fit_the_file_is_refused() {
        let tensor = |offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}}}"#);
        assert!(read(&file(&tensor("[0,8]"), &[0; 8])).is_ok());
        for (offsets, bytes) in [("[0,8]", 7), ("[0,8]", 9), ("[0,4]", 8), ("[8,0]", 8), ("[4,12]", 12), ("[0]", 8)] {
            let error = error(&tensor(offsets), bytes);
            assert!(error.contains("cut short or damaged"), "{offsets}: {error}");
        }
        for header in ["", "{", "[]", "{\"a\":1}", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,8]}}"]
        {
            assert!(error(header, 8).contains("cut short or damaged"), "{header}");
        }
        let huge = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}}"#;
        assert!(error(huge, 8).contains("cut short or damaged"));
        assert!(read(b"short").unwrap_err().to_string().contains("cut short or damaged"));
    }

    #[test]
    fn tensors_that_share_bytes_or_a_name_are_refused() {
        let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        for other in [a.to_owned(), a.replacen('a', "b", 1), a.replacen('a', "b", 1).replace("[0,8]", "[4,12]")] {
            assert!(error(&format!("{{{a},{other}}}"), 12).contains("cut short or damaged"), "{other}");
        }
    }

    #[test]
    fn types_shapes_and_headers_out_of_bounds_are_named() {
        let with = |kind: &str, shape: &str, bytes: usize| {
            error(&format!(r#"{{"a":{{"dtype":"{kind}","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#), bytes)
        };
        assert_eq!(with("I64", "[1]", 8), "tensor `a` has type I64, which is not supported (F32, F16 and BF16 are)");
        assert!(with("F8_E4M3", "[1]", 1).contains("F8_E4M3, which is not supported"));
        assert!(with("F32", "[]", 4).contains("impossible shape []"));
        assert!(with("F32", "[1,1,1,1,1]", 4).contains("impossible shape"));
        let mut long = file("{}", &[]);
        long[..8].copy_from_slice(&(HEADER_BYTES_MAX + 1).to_le_bytes());
        assert!(read(&long).unwrap_err().to_string().contains("its header has 16777217 bytes"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, header in "[\\[\\]{}a-z0-9:,\"_]{0,80}") {
            let _ = read(&bytes);
            if let Ok(places) = read(&file(&header, &bytes)) {
                prop_assert!(places.is_empty(), "a random header named a tensor");
            }
        }
    }
}
