//! Prefill and decode speed of a model file, as one line of JSON.
//!
//! `speed MODEL [--threads N] [--prompt N] [--generate N] [--sequences N] [--chunk N] [--repeats N]
//! [--family scalar|avx2|avx512-vnni]`
//!
//! Wall-clock figures: run it on a quiet machine. Tokens are arbitrary; the same work is done for any.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use engine_model::{Forward, KernelFamily, KvShape, KvStore, Model, PAGE_TOKENS, PageRef, Span};

struct Options {
    model: PathBuf,
    threads: usize,
    prompt: usize,
    generate: usize,
    sequences: usize,
    chunk: usize,
    repeats: usize,
    family: KernelFamily,
}

fn options() -> Option<Options> {
    let mut arguments = std::env::args().skip(1);
    let mut options = Options {
        model: arguments.next()?.into(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        prompt: 512,
        generate: 128,
        sequences: 1,
        chunk: 256,
        repeats: 3,
        family: KernelFamily::detect(),
    };
    while let Some(name) = arguments.next() {
        let text = arguments.next()?;
        if name == "--family" {
            options.family = KernelFamily::ALL.into_iter().find(|family| family.name() == text)?;
            continue;
        }
        let value: usize = text.parse().ok().filter(|value| *value > 0)?;
        match name.as_str() {
            "--threads" => options.threads = value,
            "--prompt" => options.prompt = value,
            "--generate" => options.generate = value,
            "--sequences" => options.sequences = value,
            "--chunk" => options.chunk = value,
            "--repeats" => options.repeats = value,
            _ => return None,
        }
    }
    Some(options)
}

#[expect(clippy::print_stdout, reason = "the result of a command-line program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(options) = options() else {
        return Err(
            "usage: speed MODEL [--threads N] [--prompt N] [--generate N] [--sequences N] [--chunk N] [--repeats N] [--family NAME]"
                .into(),
        );
    };
    let Options { threads, prompt, generate, sequences, chunk, repeats, family, .. } = options;
    let start = Instant::now();
    let model = Arc::new(Model::load(&options.model, threads)?);
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let config = model.config();
    let vocab = config.vocab as u32;

    let pages_each = (prompt + generate).div_ceil(PAGE_TOKENS);
    let pages = pages_each * sequences;
    let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages };
    let mut store = KvStore::new(shape)?;
    let mut tables = Vec::new();
    for sequence in 0..sequences {
        let table: Vec<PageRef> = (0..pages_each)
            .map(|index| PageRef { page: (sequence * pages_each + index) as u32, tag: sequence as u32 + 1 })
            .collect();
        for page in &table {
            store.assign(*page)?;
        }
        tables.push(table);
    }
    let tokens: Vec<u32> = (0..prompt as u32).map(|index| (index * 7_919 + 13) % vocab).collect();
    let forward = Forward::with_family(Arc::clone(&model), threads, chunk.max(sequences), family);
    let mut forward = forward.ok_or("this machine lacks the family")?;
    forward.tie_caller();

    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for _ in 0..=repeats {
        let start = Instant::now();
        for pages in &tables {
            for (index, tokens) in tokens.chunks(chunk).enumerate() {
                let position = index * chunk;
                let logits = position + tokens.len() == prompt;
                forward.run(&mut store, &[Span { ticket: 0, tokens, position, pages, logits }], &|| false)?;
            }
        }
        prefill.push((prompt * sequences) as f64 / start.elapsed().as_secs_f64());

        let start = Instant::now();
        let mut next: Vec<[u32; 1]> = vec![[1]; sequences];
        for step in 0..generate {
            let spans: Vec<Span<'_>> = std::iter::zip(&next, &tables)
                .map(|(tokens, pages)| Span { ticket: 0, tokens, position: prompt + step, pages, logits: true })
                .collect();
            forward.run(&mut store, &spans, &|| false)?;
            for (sequence, next) in next.iter_mut().enumerate() {
                let logits = forward.logits(sequence, 0).ok_or("no logits")?;
                let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token);
                *next = [best as u32];
            }
        }
        decode.push((generate * sequences) as f64 / start.elapsed().as_secs_f64());
    }
    // The first repetition warms up.
    let [prefill, decode] = [&mut prefill[1..], &mut decode[1..]].map(|figures| {
        figures.sort_by(f64::total_cmp);
        format!(
            "{{\"median\":{:.1},\"min\":{:.1},\"max\":{:.1}}}",
            figures[figures.len() / 2],
            figures[0],
            figures[figures.len() - 1]
        )
    });
    println!(
        "{{\"kernels\":\"{}\",\"threads\":{threads},\"load_ms\":{load_ms:.0},\"prompt\":{prompt},\"generate\":{generate},\
         \"sequences\":{sequences},\"chunk\":{chunk},\"repeats\":{repeats},\
         \"prefill_tokens_per_second\":{prefill},\"decode_tokens_per_second\":{decode},\"peak_memory_kib\":{}}}",
        family.name(),
        peak_memory_kib()
    );
    Ok(())
}

/// The largest resident memory so far; 0 where the system does not say.
fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
