//! Gets a model from a hub of Hugging Face's kind: one GGUF file, or a folder of safetensors with what belongs to it.
//!
//! All files are of one commit. A cut download goes on where it was cut, also in a later run; every file is compared
//! with the digest that the hub names for it, and one that the hub names none for is not used. Files lie as in the
//! hub's own cache: `models--OWNER--NAME/snapshots/COMMIT`.
//!
//! The places of files, on the hub and here, are the library's; it asks for nothing itself, because its requests take
//! the token to wherever they are redirected and write whatever comes.

mod hub;

use super::output::note;
use anyhow::{Context, Result, bail};
use hf_hub::api::RepoInfo;
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use http::StatusCode;
use hub::{AskHubError, Hub};
use indicatif::{ProgressBar, ProgressStyle};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cut connection is taken up again this often, each time where it was cut.
const TRIES: u32 = 8;
/// Before the second try; longer by as much before each further one.
const BACK_OFF: Duration = Duration::from_secs(2);
/// Most files of one model.
const FILES_MAX: usize = 1_100;
/// Longest name of an owner, repository, revision, file or folder, bytes.
const NAME_BYTES_MAX: usize = 200;
/// Longest name of a file with its folders, bytes.
const PATH_BYTES_MAX: usize = 1_000;
/// Most names that a message lists.
const NAMES_SHOWN_MAX: usize = 20;
/// What belongs to a model in safetensors, beside the weights.
const BESIDE: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// What to get, and from where.
pub(crate) struct Options {
    /// `OWNER/NAME` or `OWNER/NAME@REVISION`.
    pub(crate) repository: String,
    /// Only this file.
    pub(crate) file: Option<String>,
    /// The hub's address; the library's own when not given.
    pub(crate) endpoint: Option<String>,
    /// For repositories that not everybody may read.
    pub(crate) token: Option<String>,
    /// Where repositories are kept.
    pub(crate) folder: PathBuf,
}

/// Gets what is not there yet and says where it is: a GGUF file or a folder, either for `--model`.
///
/// # Errors
/// What failed, in the words of somebody who asked for it.
pub(crate) fn pull(options: &Options) -> Result<PathBuf> {
    Pull::new(options, BACK_OFF)?.run(options.file.as_deref())
}

struct Pull {
    hub: Hub,
    cache: Cache,
    id: String,
    revision: String,
    back_off: Duration,
}

impl Pull {
    fn new(options: &Options, back_off: Duration) -> Result<Self> {
        let (id, revision) = options.repository.split_once('@').unwrap_or((&options.repository, "main"));
        let is_id = id.split('/').count() == 2 && id.split('/').all(is_name);
        if !is_id {
            bail!("`{id}` is not a repository's name: it is written OWNER/NAME");
        }
        if !is_path(revision) {
            bail!("`{revision}` is not a revision's name: a branch, a tag or a commit");
        }
        let hub = Hub::new(options.endpoint.as_deref(), options.token.as_deref())?;
        let folder = &options.folder;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let cache = Cache::new(folder.canonicalize()?);
        Ok(Self { hub, cache, id: id.to_owned(), revision: revision.to_owned(), back_off })
    }

    fn run(&self, file: Option<&str>) -> Result<PathBuf> {
        let (id, revision) = (&self.id, &self.revision);
        let named = Repo::with_revision(id.clone(), RepoType::Model, revision.clone());
        let path = format!("api/{}", named.api_url());
        let info: RepoInfo = self.attempts(&format!("`{id}`"), || self.hub.describe(&path))?;
        if !is_hex(&info.sha, 40) {
            bail!("the hub names no commit for `{id}`");
        }
        let names: Vec<&str> = info.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
        let wanted = choose(&names, file).with_context(|| format!("`{id}` at `{revision}`"))?;
        let repo = Repo::with_revision(id.clone(), RepoType::Model, info.sha);
        let mut path = None;
        for name in &wanted {
            path = Some(self.file(&repo, name)?);
        }
        let path = path.context("there is nothing to get")?;
        if let [name] = wanted.as_slice()
            && name.ends_with(".gguf")
        {
            return Ok(path);
        }
        Ok(self.cache.repo(repo.clone()).pointer_path(repo.revision()))
    }

    /// One file, compared with the hub's digest of it.
    fn file(&self, repo: &Repo, name: &str) -> Result<PathBuf> {
        let cached = self.cache.repo(repo.clone());
        let what = format!("`{name}`");
        let place = format!("{}/resolve/{}/{name}", repo.url(), repo.url_revision());
        let announced = self.attempts(&what, || self.hub.announcement(&place))?;
        let (etag, bytes) = (announced.etag.as_str(), announced.bytes);
        // They become names of files: nothing else may be in them.
        if !(is_hex(etag, 64) || is_hex(etag, 40)) || announced.commit != repo.revision() {
            bail!("the hub names no digest for `{name}`, so that it cannot be checked");
        }
        let blob = cached.blob_path(etag);
        let path = cached.pointer_path(repo.revision()).join(name);
        if !path.exists() {
            if !blob.exists() {
                self.blob(&blob, bytes, name, &|part, bar| {
                    self.hub.download(&place, part, bytes, |there| bar.set_position(there))
                })?;
            }
            point(&cached, &path, repo.revision(), etag).with_context(|| format!("{what} cannot get its name"))?;
        }
        if let Err(error) = check(&path, etag) {
            for path in [&path, &blob] {
                let _ = fs::remove_file(path);
            }
            return Err(error.context(format!("`{name}` is not what the hub says it is; it was removed")));
        }
        Ok(path)
    }

    /// Downloads beside the final place, then renames.
    fn blob(
        &self,
        blob: &Path,
        bytes: u64,
        name: &str,
        download: &dyn Fn(&Path, &ProgressBar) -> Result<(), AskHubError>,
    ) -> Result<()> {
        let folder = blob.parent().context("a file lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let lock = File::create(blob.with_extension("lock"))?;
        if lock.try_lock().is_err() {
            bail!("`{name}` is being fetched already");
        }
        let part = blob.with_extension("part");
        // What is there and should not be follows nothing that will be fetched.
        if fs::metadata(&part).is_ok_and(|file| file.len() >= bytes) {
            fs::remove_file(&part)?;
        }
        let bar = progress_bar(bytes, name);
        let done = self.attempts(&format!("`{name}`"), || download(&part, &bar));
        bar.finish_and_clear();
        done?;
        fs::rename(&part, blob).with_context(|| format!("`{name}` cannot get its name"))
    }

    /// Repeats what may work another time.
    fn attempts<T>(&self, what: &str, work: impl Fn() -> Result<T, AskHubError>) -> Result<T> {
        let mut attempt = 1;
        loop {
            let error = match work() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match error {
                AskHubError::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => bail!(
                    "{what} is gated, private or not there: if it is gated, accept its terms on the hub, and give your \
                     token in HF_TOKEN"
                ),
                AskHubError::Status(StatusCode::NOT_FOUND) => {
                    bail!("the hub has no {what} (repository {}, revision {})", self.id, self.revision)
                }
                AskHubError::Status(status) if !error.may_pass() => {
                    bail!("the hub refused {what} with status {}", status.as_u16())
                }
                _ if !error.may_pass() => return Err(anyhow::Error::new(error).context(what.to_owned())),
                _ if attempt == TRIES => {
                    return Err(anyhow::Error::new(error).context(format!("{what}: gave up after {TRIES} tries")));
                }
                _ => {}
            }
            note(format_args!("{what}: {error}; try {} of {TRIES}", attempt + 1));
            std::thread::sleep(self.back_off * attempt);
            attempt += 1;
        }
    }
}

/// Gives a finished download the name that the repository has for it, as the hub's own libraries do.
fn point(cached: &CacheRepo, path: &Path, commit: &str, etag: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // From `snapshots/COMMIT/FOLDERS` up to the repository.
    let snapshot = cached.pointer_path(commit);
    let folders = path.strip_prefix(&snapshot).map_or(1, |name| name.components().count());
    let target = "../".repeat(1 + folders) + "blobs/" + etag;
    // A name that stands for nothing was left by a file that was removed.
    if path.is_symlink() {
        fs::remove_file(path)?;
    }
    std::os::unix::fs::symlink(target, path)?;
    cached.create_ref(commit)
}

fn progress_bar(bytes: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(name.to_owned());
    // A mistake in the template would show in every run; the bar's own style is no loss.
    if let Ok(style) =
        ProgressStyle::with_template("{msg:.40} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    {
        bar.set_style(style);
    }
    bar
}

/// One part of a name: what can be a name of a file anywhere, and is none with a meaning of its own.
fn is_name(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&part.len()) && part.bytes().all(is_plain) && !part.starts_with('.')
}

/// Such names with `/` between them.
fn is_path(path: &str) -> bool {
    path.len() <= PATH_BYTES_MAX && path.split('/').all(is_name)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The files to get, of those that there are.
fn choose<'a>(names: &[&'a str], file: Option<&str>) -> Result<Vec<&'a str>> {
    let names: Vec<&str> = names.iter().copied().filter(|name| is_path(name)).collect();
    if let Some(file) = file {
        let found = names.iter().find(|name| **name == file);
        return Ok(vec![found.with_context(|| format!("there is no file `{file}`"))?]);
    }
    if names.contains(&"config.json") {
        let is_shard = |name: &str| name.starts_with("model-") && name.ends_with(".safetensors") && !name.contains('/');
        let weights: Vec<&str> = match names.iter().find(|name| **name == "model.safetensors") {
            Some(one) => vec![one],
            None => names.iter().copied().filter(|name| is_shard(name)).collect(),
        };
        if weights.len() > FILES_MAX {
            bail!("there are {} files of weights, at most {FILES_MAX} are accepted", weights.len());
        }
        if !weights.is_empty() {
            let beside = names.iter().copied().filter(|name| BESIDE.contains(name));
            return Ok(beside.chain(weights).collect());
        }
    }
    let files: Vec<&str> = names.into_iter().filter(|name| name.ends_with(".gguf")).collect();
    match files.as_slice() {
        [] => bail!("there is neither a GGUF file nor a model in safetensors"),
        [one] => Ok(vec![one]),
        several => {
            let shown = several.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join("\n  ");
            let more = match several.len().saturating_sub(NAMES_SHOWN_MAX) {
                0 => String::new(),
                more => format!("\n  and {more} more"),
            };
            bail!("there are {} GGUF files; choose one with --file NAME:\n  {shown}{more}", several.len())
        }
    }
}

/// Compares a file with what the hub calls it: the SHA-256 of a large file, git's name of a small one.
fn check(path: &Path, etag: &str) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("`{}` cannot be opened", path.display()))?;
    let mut large = Sha256::new();
    let mut small = Sha1::new();
    small.update(format!("blob {}\0", file.metadata()?.len()));
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                let bytes = buffer.get(..read).unwrap_or_default();
                if is_hex(etag, 64) { large.update(bytes) } else { small.update(bytes) }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let (kind, found) = match etag.len() {
        64 => ("SHA-256", hex::encode(large.finalize())),
        _ => ("git name", hex::encode(small.finalize())),
    };
    if found != etag {
        bail!("its {kind} is {found} instead of {etag}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
