//! Other engines to measure against, from the package registry, each in a virtual environment of its own under `.tools`.
//!
//! llama.cpp is compiled on this machine for this machine's instructions. AMX is the exception: virtual machines announce
//! it and end the process that uses it, so where it is announced there are two builds, with it and without. The
//! benchmark finds out what runs and counts the faster one.

use crate::phase::execute;
use crate::setup;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const LLAMA_CPP: &str = "llama-cpp-python==0.3.36";

const MISTRALRS: &str = "mistralrs==0.9.5";

/// How the processor names an instruction set, and the build's switch for it.
const SWITCHES: &[(&str, &str)] = &[
    ("sse4_2", "GGML_SSE42"),
    ("avx", "GGML_AVX"),
    ("avx2", "GGML_AVX2"),
    ("fma", "GGML_FMA"),
    ("f16c", "GGML_F16C"),
    ("bmi2", "GGML_BMI2"),
    ("avx_vnni", "GGML_AVX_VNNI"),
    ("avx512f", "GGML_AVX512"),
    ("avx512vbmi", "GGML_AVX512_VBMI"),
    ("avx512_vnni", "GGML_AVX512_VNNI"),
    ("avx512_bf16", "GGML_AVX512_BF16"),
];

/// The package's own HTTP server answers one request at a time. llama.cpp's, whose source is in the package, answers all
/// at once: it is the one to compare with, built without its page and without TLS.
const SERVER_SWITCHES: &[&str] = &[
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
];

/// What llama.cpp can also run the model as, with the number that it has for the format. It chooses its best kernels and
/// its own layout for each.
const FORMATS: &[(&str, u32)] = &[("Q4_0", 2), ("Q8_0", 7), ("BF16", 32)];

/// Makes one file of another with llama.cpp's own quantiser.
const QUANTISE: &str = include_str!("quantise.py");

/// One way to compile the peer.
#[derive(Debug, PartialEq, Eq)]
struct Build {
    folder: &'static str,
    cmake_arguments: String,
}

/// The Pythons of all builds that make sense on this machine; compiles what is missing.
pub(super) fn llama_cpp(root: &Path) -> Result<Vec<PathBuf>> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    builds(&cpuinfo).iter().map(|build| install(root, build)).collect()
}

fn builds(cpuinfo: &str) -> Vec<Build> {
    let common = "-DCMAKE_BUILD_TYPE=Release -DLLAVA_BUILD=OFF";
    let native = |folder| Build { folder, cmake_arguments: format!("{common} -DGGML_NATIVE=ON") };
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
    if !has("amx_tile") {
        return vec![native("llama-cpp")];
    }
    let switch = |(flag, switch): &(&str, &str)| format!(" -D{switch}={}", if has(flag) { "ON" } else { "OFF" });
    let switches: String = SWITCHES.iter().map(switch).collect();
    let without = Build { folder: "llama-cpp", cmake_arguments: format!("{common} -DGGML_NATIVE=OFF{switches}") };
    vec![without, native("llama-cpp-amx")]
}

fn install(root: &Path, build: &Build) -> Result<PathBuf> {
    let venv = root.join(".tools/peers").join(build.folder);
    let (python, stamp) = (venv.join("bin/python"), venv.join("built"));
    let wanted = format!("{LLAMA_CPP}\n{}\n", build.cmake_arguments);
    if std::fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
        return Ok(python);
    }
    setup::make_venv(&venv)?;
    eprintln!("compiling llama.cpp: about ten minutes of two cores");
    execute(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--force-reinstall"])
            .args(["--no-binary", "llama-cpp-python", LLAMA_CPP])
            .env("CMAKE_ARGS", &build.cmake_arguments),
    )?;
    // Written last: a cut installation is done again.
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

/// The Python that has mistral.rs, a prebuilt package.
pub(super) fn mistralrs(root: &Path) -> Result<PathBuf> {
    let venv = root.join(".tools/peers/mistralrs");
    let python = venv.join("bin/python");
    setup::make_venv(&venv)?;
    execute(Command::new(&python).args(["-m", "pip", "install", "--quiet", MISTRALRS]))?;
    Ok(python)
}

/// llama.cpp's HTTP server for those who need nothing else of the peer; compiles it when it is missing.
pub(super) fn llama_server_alone(root: &Path) -> Result<PathBuf> {
    let venv = root.join(".tools/peers/registry");
    setup::make_venv(&venv)?;
    llama_server(root, &venv.join("bin/python"))
}

/// llama.cpp's HTTP server; compiles it when it is missing. `python` is any that has pip.
pub(super) fn llama_server(root: &Path, python: &Path) -> Result<PathBuf> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let builds = builds(&cpuinfo);
    let build = builds.first().context("no build of the peer")?;
    let folder = root.join(".tools/peers/llama-server");
    let (server, stamp) = (folder.join("build/bin/llama-server"), folder.join("built"));
    let wanted = format!("{LLAMA_CPP}\n{}\n{}\n", build.cmake_arguments, SERVER_SWITCHES.join(" "));
    if std::fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
        return Ok(server);
    }
    let source = folder.join("source");
    std::fs::create_dir_all(&source).with_context(|| format!("cannot make {}", source.display()))?;
    execute(
        Command::new(python)
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", LLAMA_CPP, "-d"])
            .arg(&folder),
    )?;
    let archives = std::fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let archive = archives.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "gz"));
    let archive = archive.context("the package's source was not downloaded")?;
    execute(Command::new("tar").args(["--strip-components=1", "-C"]).arg(&source).arg("-xzf").arg(archive))?;
    eprintln!("compiling llama.cpp's server: more than ten minutes of two cores");
    execute(
        Command::new("cmake")
            .arg("-S")
            .arg(source.join("vendor/llama.cpp"))
            .arg("-B")
            .arg(folder.join("build"))
            .args(build.cmake_arguments.split(' '))
            .args(SERVER_SWITCHES),
    )?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    execute(Command::new("cmake").arg("--build").arg(folder.join("build")).args([
        "--target",
        "llama-server",
        "-j",
        &cores,
    ]))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(server)
}

/// The model in the peer's other formats; makes what is missing.
pub(super) fn files(root: &Path, python: &Path, model: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join(".tools/peers/files");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let stem = model.file_stem().context("the model has no name")?.to_string_lossy();
    let mut files = Vec::new();
    for (format, number) in FORMATS {
        let file = folder.join(format!("{stem}.as-{format}.gguf"));
        if !file.is_file() {
            let part = file.with_extension("part");
            execute(Command::new(python).args(["-c", QUANTISE]).arg(model).arg(&part).arg(number.to_string()))?;
            std::fs::rename(&part, &file).with_context(|| format!("cannot write {}", file.display()))?;
        }
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_amx_is_announced_one_build_does_without() {
        let builds =
            builds("processor : 0\nflags\t\t: fpu avx avx2 fma avx512f avx512_vnni amx_tile amx_int8\nflags: x\n");
        let [without, with] = builds.as_slice() else { panic!("{builds:?}") };
        assert!(without.cmake_arguments.contains("-DGGML_NATIVE=OFF") && with.cmake_arguments.contains("NATIVE=ON"));
        for part in ["-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=OFF", "-DGGML_AVX2=ON"] {
            assert!(without.cmake_arguments.contains(part), "{part}: {}", without.cmake_arguments);
        }
        assert!(!without.cmake_arguments.contains("AMX"));
        assert_ne!(without.folder, with.folder);
    }

    #[test]
    fn elsewhere_one_native_build_is_enough() {
        for cpuinfo in ["flags : avx2 avx512f", "Features : asimd", ""] {
            let builds = builds(cpuinfo);
            assert_eq!(builds.len(), 1, "{cpuinfo}");
            assert!(builds[0].cmake_arguments.contains("-DGGML_NATIVE=ON"));
        }
    }
}
