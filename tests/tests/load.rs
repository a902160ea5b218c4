//! Many at once, nobody at all, and what it costs in memory.

use anyhow::{Context, Result, bail, ensure};
use e2e::{Demo, Event, chat, model_path};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

fn proc_file(pid: u32, name: &str) -> Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).context("no /proc")
}

/// Resident memory in bytes: `VmRSS:` now, `VmHWM:` the most so far.
fn resident(pid: u32, field: &str) -> Result<u64> {
    let status = proc_file(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("not in the status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// CPU ticks of the process, and how often its threads went to sleep and came back.
fn activity(pid: u32) -> Result<(u64, u64)> {
    let stat = proc_file(pid, "stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("no stat")?.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    let mut switches = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        switches += count.context("no switches")?.trim().parse::<u64>()?;
    }
    Ok((ticks, switches))
}

fn text(events: &[Event]) -> Result<String> {
    let mut text = String::new();
    for event in events.iter().filter(|event| event.name.is_empty() && event.data != "[DONE]") {
        let chunk: serde_json::Value = serde_json::from_str(&event.data)?;
        text += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    Ok(text)
}

#[test]
fn sixty_four_streams_end_well_and_say_what_they_say_alone() -> Result<()> {
    let demo = Demo::start()?;
    let prompts: Vec<String> = (0..4).map(|i| format!("Write one sentence about the number {i}.")).collect();
    let stream = |place: usize, prompt: &str| -> Result<String> {
        let (_, events) = demo.client(place)?.stream("/v1/chat/completions", &chat(&demo.model, prompt, 16, true))?;
        let events = events.collect::<Result<Vec<_>>>()?;
        ensure!(events.last().is_some_and(|event| event.data == "[DONE]"), "a stream was cut");
        text(&events)
    };
    let alone: Vec<String> = prompts.iter().map(|prompt| stream(0, prompt)).collect::<Result<_>>()?;
    ensure!(alone.iter().all(|text| !text.is_empty()));
    std::thread::scope(|scope| -> Result<()> {
        let streams: Vec<_> = (0..64).map(|i| scope.spawn(move || (i, stream(i % 2, &prompts_of(i))))).collect();
        for joined in streams {
            let (i, said) = joined.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            ensure!(said? == alone[i % 4], "stream {i} says something else in company");
        }
        Ok(())
    })?;
    ensure!(!demo.stop()?.contains("panicked"));
    Ok(())
}

#[test]
fn eighty_clients_that_do_not_read_keep_nobody_waiting() -> Result<()> {
    let demo = Demo::start()?;
    let globex = demo.client(1)?;
    let short = chat(&demo.model, "Say hello.", 4, false);
    let (alone, _) = globex.ask(&short)?;
    let body = chat(&demo.model, "Tell a story.", 6000, true).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        demo.tenants[0].key,
        body.len()
    );
    let mut unread = Vec::new();
    for _ in 0..80 {
        let mut socket = TcpStream::connect(demo.address)?;
        socket.write_all(request.as_bytes())?;
        unread.push(socket);
    }
    let metrics = || globex.get("/metrics")?.text();
    while !metrics()?.contains("engine_sequences_running 64") {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The client gives up after two minutes; the eighty would keep all slots for longer than that.
    let (answer, _) = globex.ask(&short)?;
    ensure!(answer == alone, "an answer changed in bad company");
    ensure!(metrics()?.contains("engine_sequences_running 64"), "the eighty were gone: nothing was tested");
    drop(unread);
    while !metrics()?.contains("engine_sequences_running 0") {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Scrubbing takes a moment. What tenants have asked before is kept for them.
    let given_back =
        || Ok::<_, anyhow::Error>(gauge(&metrics()?, "kv_pages_free") + gauge(&metrics()?, "kv_pages_shared"));
    for _ in 0..250 {
        if given_back()? == 4096 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("pages were not given back: {}", given_back()?)
}

/// The value of a metric without labels; 0 when it is not there.
fn gauge(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn prompts_of(i: usize) -> String {
    format!("Write one sentence about the number {}.", i % 4)
}

/// What a process may take beside the weights and the pages of K and V that it uses: 60 MB, of which a release build has 16 MB
/// for its code. That of a test build, which is not optimised, is twice as large and is not counted.
const MEMORY_BESIDE: u64 = (60 - 16) << 20;

#[test]
fn memory_stays_near_the_file_s_size() -> Result<()> {
    let (file, cache) = (std::fs::metadata(model_path()?)?.len(), tempfile::tempdir()?);
    // The first start repacks, the second restores from the cache. Both keep to it from the first moment on.
    for start in ["cold", "warm"] {
        let demo = Demo::start_with_cache(cache.path())?;
        demo.client(0)?.ask(&chat(&demo.model, "Say hello.", 32, false))?;
        let (now, most) = (resident(demo.pid(), "VmRSS:")?, resident(demo.pid(), "VmHWM:")?);
        let code = resident_code(demo.pid())?;
        println!(
            "{start}: resident {} MB, at most {} MB, file {} MB, code {} MB",
            now >> 20,
            most >> 20,
            file >> 20,
            code >> 20
        );
        let most = most.saturating_sub(code);
        ensure!(most <= file + MEMORY_BESIDE, "{start}: {} MB resident for a file of {} MB", most >> 20, file >> 20);
        while !has_weights(cache.path())? {
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(!demo.stop()?.contains("cache"), "{start}: a cache in order is nothing to speak of");
    }
    Ok(())
}

/// Bytes of the program's own file that are in memory.
fn resident_code(pid: u32) -> Result<u64> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"))?.display().to_string();
    let (mut own, mut kib) = (false, 0);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        match line.strip_prefix("Rss:") {
            Some(rest) if own => kib += rest.trim().trim_end_matches(" kB").parse::<u64>()?,
            // The first line of a mapping ends with its file; those of its figures have a name with a colon.
            None if line.split(' ').next().is_some_and(|word| !word.ends_with(':')) => own = line.ends_with(&program),
            _ => {}
        }
    }
    ensure!(kib > 0, "no mapping of `{program}`");
    Ok(kib << 10)
}

/// Whether the weights are saved, whole.
fn has_weights(cache: &std::path::Path) -> Result<bool> {
    let mut names = std::fs::read_dir(cache)?.map(|entry| anyhow::Ok(entry?.file_name()));
    names.try_fold(false, |any, name| Ok(any || name?.to_string_lossy().ends_with(".weights")))
}

#[test]
fn a_cache_that_cannot_be_used_or_written_is_a_warning() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let in_the_way = folder.path().join("a-file");
    std::fs::write(&in_the_way, b"")?;
    let demo = Demo::start_with_cache(&in_the_way)?;
    let (answer, _) = demo.client(0)?.ask(&chat(&demo.model, "Say hello.", 4, false))?;
    ensure!(!answer.is_empty());
    // Said before or after the answer, by whichever thread; at the latest when the gateway has ended.
    let said = demo.stop()?;
    ensure!(said.contains("repacked weights are not kept for the next start"), "{said}");
    Ok(())
}

#[test]
fn an_idle_gateway_uses_no_cpu() -> Result<()> {
    let demo = Demo::start()?;
    demo.client(0)?.ask(&chat(&demo.model, "Say hello.", 8, false))?;
    // What the answer left to do, such as publishing its checkpoint, is over within the log's period of one second.
    std::thread::sleep(Duration::from_secs(3));
    let (ticks, switches) = activity(demo.pid())?;
    std::thread::sleep(Duration::from_secs(5));
    let (ticks_later, switches_later) = activity(demo.pid())?;
    let (ticks, switches) = (ticks_later - ticks, switches_later - switches);
    println!("in five idle seconds: {ticks} ticks of 10 ms, {switches} wake-ups");
    // A heartbeat of the log may fall into the window: a handful of wake-ups and at most one tick.
    ensure!(ticks <= 2, "{ticks} ticks of CPU in five idle seconds");
    ensure!(switches <= 100, "{switches} wake-ups in five idle seconds");
    Ok(())
}
