//! Where the unit tests find the model file, and the clock of the linear-time test.

use std::path::PathBuf;
use std::time::Duration;

/// `BULKHEAD_TEST_MODEL`, or the file that `./x test` puts into the user's data directory.
pub(crate) fn path() -> PathBuf {
    let path = std::env::var_os("BULKHEAD_TEST_MODEL").map(PathBuf::from).unwrap_or_else(|| {
        let data = std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(std::path::Path::new(&std::env::var_os("HOME")?).join(".local/share")))
            .expect("HOME is set");
        data.join("bulkhead/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    assert!(
        path.exists(),
        "no model at {}: run `./x test`, which fetches it, or set BULKHEAD_TEST_MODEL",
        path.display()
    );
    path
}

/// CPU time of the calling thread: what other processes do does not count.
pub(crate) fn thread_cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}
