//! Where tests find the model file.

use std::path::{Path, PathBuf};

/// `BULKHEAD_TEST_MODEL`, or the file that `./x test` puts into the user's data directory.
pub(crate) fn path() -> PathBuf {
    let path = std::env::var_os("BULKHEAD_TEST_MODEL").map(PathBuf::from).unwrap_or_else(|| {
        let data = std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".local/share")))
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
