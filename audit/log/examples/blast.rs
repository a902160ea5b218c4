//! How long the blast radius of something takes: `blast DIR ENTRIES [OUTPUT]` makes a log of that many entries in a new folder,
//! asks questions about it, and prints a line for each; the JSON goes to OUTPUT.
//!
//! Nothing serves these requests: their entries, traces and checkpoint are written as a log writes them, without waiting for
//! the disk. Each request reads 44 pages, as 500 tokens of prompt and 200 of an answer do: a fifth of them are shared with
//! others of its tenant, four with everybody.
#![expect(clippy::print_stdout, reason = "a command line program")]
#![expect(clippy::unwrap_used, reason = "an example that may end at the first error")]

use audit_log::{BlastRadius, BlastRadiusQuery, Suspect, blast_radius};
use audit_provenance::{
    Body, Coverage, Entry, EntryVersion, Head, Opened, PageClass, PageCounts, PageRun, SealReason, Sealing, TenantLink,
    Trace,
};
use audit_tlog::{Checkpoint, Edge, Hash, LogSigner, leaf_hash};
use policies_domain::{Digest, Generation, PageId, RequestId};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

const ORIGIN: &str = "blast.example";
const START_US: u64 = 1_796_000_000_000_000;
const SEGMENT_BYTES: usize = 16 << 20;
const TENANTS: u64 = 64;
/// Requests of a tenant that begin alike, one after the other.
const CONVERSATION: u64 = 20;
const POOL_PAGES: u64 = 8_192;

struct Writer<'a> {
    dir: &'a Path,
    edge: Edge,
    segment: Option<(BufWriter<File>, BufWriter<File>, usize)>,
    tenants: Vec<(u64, Digest)>,
}

impl Writer<'_> {
    fn entry(&mut self, uuid: [u8; 16], tenant: u64, wall_us: u64, body: Body, trace: Option<&[u8]>) -> (u64, Digest) {
        let index = self.edge.size();
        let place = usize::try_from(tenant).unwrap();
        let (number, previous) = *self.tenants.get(place).unwrap();
        let link = TenantLink { tenant: reference(tenant), number, previous };
        let mut blind = [0; 32];
        blind.iter_mut().zip(random(index).to_be_bytes().iter().cycle()).for_each(|(to, from)| *to = *from);
        let version = EntryVersion::CURRENT;
        let head = Head { version, uuid, blind, boot: [1; 16], wall_us, mono_us: index, tenant: Some(link) };
        let bytes = Entry { head, body }.encode();
        let leaf = leaf_hash(&bytes);
        let Hash(hash) = leaf;
        *self.tenants.get_mut(place).unwrap() = (number + 1, Digest(hash));
        let (entries, traces, length) = self.segment.get_or_insert_with(|| {
            let file = |folder: &str| {
                let path = self.dir.join(folder).join(format!("{index:020}"));
                BufWriter::with_capacity(1 << 20, File::create(path).unwrap())
            };
            (file("segments"), file("traces"), 0)
        });
        let sum = crc32c::crc32c_append(crc32c::crc32c(&hash), &bytes);
        entries.write_all(&u32::try_from(bytes.len()).unwrap().to_be_bytes()).unwrap();
        entries.write_all(&sum.to_be_bytes()).unwrap();
        entries.write_all(&hash).unwrap();
        entries.write_all(&bytes).unwrap();
        *length += bytes.len() + 40;
        if let Some(trace) = trace {
            let sum = crc32c::crc32c_append(crc32c::crc32c(&index.to_be_bytes()), trace);
            traces.write_all(&u32::try_from(trace.len()).unwrap().to_be_bytes()).unwrap();
            traces.write_all(&sum.to_be_bytes()).unwrap();
            traces.write_all(&index.to_be_bytes()).unwrap();
            traces.write_all(trace).unwrap();
        }
        if *length >= SEGMENT_BYTES {
            self.segment = None;
        }
        drop(self.edge.push(leaf));
        (index, Digest(hash))
    }
}

fn reference(tenant: u64) -> [u8; 16] {
    u128::from(tenant + 1).to_be_bytes()
}

/// SplitMix64.
fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a request reads: everybody's prompt, its conversation's, and pages of its own whose lives nobody else has.
fn pages(request: u64) -> Vec<PageRun> {
    let page = |number: u64, class| PageRun {
        page: PageId(u32::try_from(number % POOL_PAGES).unwrap()),
        generation: Generation(u32::try_from(number / POOL_PAGES + 1).unwrap()),
        class,
        first_step: 0,
        last_step: 200,
    };
    let (tenant, conversation) = (request % TENANTS, request / TENANTS / CONVERSATION);
    let shared = (conversation * TENANTS + tenant) * 9;
    let public = (0..4).map(|number| page(number, PageClass::Public));
    let shared = (0..9).map(|number| page(1_000_000_000 + shared + number, PageClass::Own));
    public.chain(shared).chain((0..31).map(|number| page(8_192 + request * 31 + number, PageClass::Own))).collect()
}

fn make(dir: &Path, requests: u64) {
    for folder in ["segments", "traces"] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    let signer = LogSigner::from_seed(ORIGIN, &[7; 32]).unwrap();
    let tenants = vec![(0, Digest([0; 32])); usize::try_from(TENANTS).unwrap()];
    let mut writer = Writer { dir, edge: Edge::new(), segment: None, tenants };
    for request in 0..requests {
        let (tenant, wall_us) = (request % TENANTS, START_US + request * 2_000);
        let uuid = (u128::from(random(request)) << 64 | u128::from(request)).to_be_bytes();
        let opened = Opened {
            epoch: 115,
            request: [1; 32],
            tenant_name: [2; 32],
            rules: Digest([3; 32]),
            determining: Digest([4; 32]),
            model: Digest([5; 32]),
            fingerprint: Some(Digest([6; 32])),
            build: Digest([u8::try_from(request * 4 / requests).unwrap(); 32]),
            stream: true,
        };
        let (opened_index, opened_leaf) = writer.entry(uuid, tenant, wall_us, Body::Opened(opened), None);
        let pages = pages(request);
        let trace = Trace { pages, chunks: Vec::new() }.encode();
        let sealing = sealing(RequestId::from_bytes(uuid), opened_index, opened_leaf, Trace::root(&trace));
        writer.entry(uuid, tenant, wall_us + 900, Body::Sealed(sealing), Some(&trace));
    }
    writer.segment = None;
    let checkpoint = Checkpoint { origin: ORIGIN.to_owned(), size: writer.edge.size(), root: writer.edge.root() };
    std::fs::write(dir.join("checkpoint"), checkpoint.sign(&signer).unwrap()).unwrap();
    std::fs::write(dir.join("log.vkey"), format!("{}\n", signer.verifier_key())).unwrap();
}

fn sealing(request: RequestId, opened_index: u64, opened_leaf: Digest, trace: Digest) -> Sealing {
    Sealing {
        request,
        opened_index,
        opened_leaf,
        reason: SealReason::Stop,
        response: Some([8; 32]),
        chain: Some([9; 32]),
        chunks: 200,
        steps: 200,
        prompt_tokens: 500,
        completion_tokens: 200,
        pages: PageCounts { own: 40, public: 4, foreign: 0 },
        trace: Some(trace),
        queued_us: 10,
        prefill_us: 200_000,
        decode_us: 4_000_000,
        coverage: Coverage { label_gate: true, kernel_tags: true, ..Coverage::default() },
        replay: None,
    }
}

/// The process's largest resident memory so far, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

fn folder_bytes(dir: &Path) -> u64 {
    let files = ["segments", "traces"].map(|folder| std::fs::read_dir(dir.join(folder)).unwrap());
    files.into_iter().flatten().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, entries, rest @ ..] = arguments.as_slice() else {
        println!("usage: blast DIR ENTRIES [OUTPUT]");
        return;
    };
    let (dir, requests) = (Path::new(dir), entries.parse::<u64>().unwrap() / 2);
    let start = Instant::now();
    if !dir.join("checkpoint").exists() {
        make(dir, requests);
    }
    let made = start.elapsed().as_secs_f64();
    println!("{} entries, {} MiB, made in {made:.1} s", requests * 2, folder_bytes(dir) >> 20);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let some = pages(requests / 2);
    let (shared, own) = (some.get(6).unwrap(), some.get(20).unwrap());
    let middle = START_US + requests / 2 * 2_000;
    let uuid = (u128::from(random(requests / 2)) << 64 | u128::from(requests / 2)).to_be_bytes();
    let questions = [
        ("one life of a page", Suspect::Page { page: shared.page, generation: Some(shared.generation) }, false),
        ("a page in all its lives", Suspect::Page { page: own.page, generation: None }, false),
        ("one request", Suspect::Request(RequestId::from_bytes(uuid)), false),
        ("one request, transitively", Suspect::Request(RequestId::from_bytes(uuid)), true),
        ("a minute", Suspect::Time { first_us: middle, last_us: middle + 60_000_000 }, false),
        ("a tenant", Suspect::Tenant(reference(3)), false),
    ];
    let mut lines = String::new();
    for (name, suspect, transitive) in questions {
        let query = BlastRadiusQuery { suspect, transitive, through_public: false, threads };
        let start = Instant::now();
        let answer: BlastRadius = blast_radius(dir, &query, |_, _, _| {}).unwrap();
        let (seconds, rows) = (start.elapsed().as_secs_f64(), answer.rows.len());
        println!("{name}: {rows} responses, {} shared pages, {seconds:.2} s, {} MiB", answer.lives.len(), peak_mib());
        let separator = if lines.is_empty() { "" } else { "," };
        let (lives, peak) = (answer.lives.len(), peak_mib());
        write!(
            lines,
            "{separator}\n    {{\"question\": \"{name}\", \"responses\": {rows}, \"shared_pages\": {lives}, \"seconds\": {seconds:.2}, \"peak_mib\": {peak}}}"
        )
        .unwrap();
    }
    if let Some(output) = rest.first() {
        let (entries, mib) = (requests * 2, folder_bytes(dir) >> 20);
        let json = format!(
            "{{\n  \"bench\": \"blast radius\",\n  \"entries\": {entries},\n  \"log_mib\": {mib},\n  \"pages_per_response\": 44,\n  \"threads\": {threads},\n  \"questions\": [{lines}\n  ]\n}}\n"
        );
        std::fs::write(output, json).unwrap();
    }
}
