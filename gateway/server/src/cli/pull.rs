//! Gets a model from a hub of Hugging Face's kind: one GGUF file, or a folder of safetensors with what belongs to it.
//!
//! All files are of one commit. A cut download goes on where it was cut, also in a later run; every file is compared
//! with the digest that the hub names for it, and one that the hub names none for is not used. Files lie as in the
//! hub's own cache: `models--OWNER--NAME/snapshots/COMMIT`.

use super::output::note;
use anyhow::{Context, Result, bail};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
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
/// Longest name of an owner, repository, revision or file, bytes.
const NAME_BYTES_MAX: usize = 200;
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
    api: Api,
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
        if !revision.split('/').all(is_name) {
            bail!("`{revision}` is not a revision's name: a branch, a tag or a commit");
        }
        if let Some(endpoint) = &options.endpoint
            && !["https://", "http://"].iter().any(|scheme| endpoint.starts_with(scheme))
        {
            bail!("`{endpoint}` is not a hub's address: it begins with https://");
        }
        let folder = &options.folder;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        // The library compares absolute paths.
        let cache = Cache::new(folder.canonicalize()?);
        let mut api = ApiBuilder::from_cache(cache.clone())
            .with_token(options.token.clone())
            .with_user_agent("bulkhead", env!("CARGO_PKG_VERSION"));
        if let Some(endpoint) = &options.endpoint {
            api = api.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let api = api.build().context("the hub's client cannot be started")?;
        Ok(Self { api, cache, id: id.to_owned(), revision: revision.to_owned(), back_off })
    }

    fn run(&self, file: Option<&str>) -> Result<PathBuf> {
        let (id, revision) = (&self.id, &self.revision);
        let named = Repo::with_revision(id.clone(), RepoType::Model, revision.clone());
        let info = self.attempts(&format!("`{id}`"), || self.api.repo(named.clone()).info(), || ())?;
        if !is_hex(&info.sha, 40) {
            bail!("the hub names no commit for `{id}`");
        }
        let names: Vec<&str> = info.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
        let wanted = choose(&names, file).with_context(|| format!("`{id}` at `{revision}`"))?;
        let repo = Repo::with_revision(id.clone(), RepoType::Model, info.sha.clone());
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
        Ok(self.cache.repo(repo).pointer_path(&info.sha))
    }

    /// One file, compared with the hub's digest of it.
    fn file(&self, repo: &Repo, name: &str) -> Result<PathBuf> {
        let api = self.api.repo(repo.clone());
        let cached = self.cache.repo(repo.clone());
        let metadata = self.attempts(&format!("`{name}`"), || self.api.metadata(&api.url(name)), || ())?;
        let etag = metadata.etag();
        // They become names of files: nothing else may be in them.
        if !(is_hex(etag, 64) || is_hex(etag, 40)) || metadata.commit_hash() != repo.revision() {
            bail!("the hub names no digest for `{name}`, so that it cannot be checked");
        }
        let blob = cached.blob_path(etag);
        let part = blob.with_extension("part");
        // The library's own answer to a finished or too long part is to ask for what is behind its end.
        let drop_bad_part = || {
            if fs::metadata(&part).is_ok_and(|file| file.len() >= metadata.size() as u64) {
                let _ = fs::remove_file(&part);
            }
        };
        drop_bad_part();
        let path = match cached.get(name) {
            Some(path) => path,
            None => self.attempts(&format!("`{name}`"), || download(&api, name), drop_bad_part)?,
        };
        if let Err(error) = check(&path, etag) {
            for path in [&path, &blob] {
                let _ = fs::remove_file(path);
            }
            return Err(error.context(format!("`{name}` is not what the hub says it is; it was removed")));
        }
        Ok(path)
    }

    /// Repeats what may work another time; `between` runs before each further try.
    fn attempts<T>(&self, what: &str, work: impl Fn() -> Result<T, ApiError>, between: impl Fn()) -> Result<T> {
        let mut attempt = 1;
        loop {
            let error = match work() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match status(&error) {
                Some(401 | 403) => bail!(
                    "{what} is gated, private or not there: if it is gated, accept its terms on the hub, and give your \
                     token in HF_TOKEN"
                ),
                Some(404) => bail!("the hub has no {what} (repository {}, revision {})", self.id, self.revision),
                Some(status @ 400..500) if ![408, 416, 429].contains(&status) => {
                    bail!("the hub refused {what} with status {status}")
                }
                _ => {}
            }
            if attempt == TRIES {
                return Err(anyhow::Error::new(error).context(format!("{what}: gave up after {TRIES} tries")));
            }
            between();
            note(format_args!("{what}: {error}; try {} of {TRIES}", attempt + 1));
            std::thread::sleep(self.back_off * attempt);
            attempt += 1;
        }
    }
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match error.as_ref() {
            ureq::Error::StatusCode(status) => Some(*status),
            _ => None,
        },
        _ => None,
    }
}

fn download(api: &ApiRepo, name: &str) -> Result<PathBuf, ApiError> {
    let bar = ProgressBar::new(0);
    // A mistake in the template would show in every run; the bar's own style is no loss.
    if let Ok(style) =
        ProgressStyle::with_template("{msg:.40} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    {
        bar.set_style(style);
    }
    api.download_with_progress(name, Bar(bar))
}

/// Shows a download on a terminal.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        self.0.set_length(size as u64);
        self.0.set_message(filename.to_owned());
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish_and_clear();
    }
}

/// One part of a name: what can be a name of a file anywhere, and is none with a meaning of its own.
fn is_name(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&part.len()) && part.bytes().all(is_plain) && !part.starts_with('.')
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The files to get, of those that there are.
fn choose<'a>(names: &[&'a str], file: Option<&str>) -> Result<Vec<&'a str>> {
    let names: Vec<&str> = names.iter().copied().filter(|name| name.split('/').all(is_name)).collect();
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
            bail!("there are several GGUF files; choose one with --file NAME:\n  {}", several.join("\n  "))
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
