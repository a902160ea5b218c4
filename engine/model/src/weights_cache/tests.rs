//! A cache that gives back what was put in, and nothing else whatever happens to its file.

use std::os::unix::fs::symlink;

use engine_kernels::{MatrixKind, MatrixSource};

use super::*;
use crate::packed_weights::Packer;

const MODEL: &[u8] = b"a model file";

/// The two matrices of a model, and a packer that knows the folder.
struct Rig {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Rig {
    fn new() -> Self {
        // Q8_0: scales of 1.
        let block: Vec<u8> = [0, 0x3c].into_iter().chain(0..32).collect();
        Self { folder: tempfile::tempdir().unwrap(), bytes: block.repeat(2 * 48) }
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("cache/weights")
    }

    fn sources(&self) -> [MatrixSource<'_>; 2] {
        let source = |rows| MatrixSource { kind: MatrixKind::Q8_0, rows, width: 64, bytes: &self.bytes[..rows * 68] };
        [source(48), source(5)]
    }

    fn pack(&self, model: &[u8], sources: &[MatrixSource<'_>]) -> PackedWeights {
        let (folder, hint) = (self.folder(), hint(model));
        let lookup = CacheLookup { folder: &folder, hint, model: None };
        Packer { threads: 2, release: &|_| (), cache: Some(&lookup) }.pack(sources).unwrap()
    }

    fn unsaved(&self, model: &[u8]) -> UnsavedWeights {
        let packed = Packer { threads: 2, release: &|_| (), cache: None }.pack(&self.sources()).unwrap();
        UnsavedWeights::new(&self.folder(), digest(model), hint(model), &packed, None)
    }

    /// Saves the model's weights; the file.
    fn saved(&self) -> PathBuf {
        self.unsaved(MODEL).save().unwrap();
        self.folder().join(file_name(digest(MODEL)))
    }

    /// Why the cache is not used, now; that the weights are right nevertheless.
    fn refusal(&self) -> Option<UnusableCache> {
        let packed = self.pack(MODEL, &self.sources());
        let wanted = Packer { threads: 1, release: &|_| (), cache: None }.pack(&self.sources()).unwrap();
        assert_eq!(packed.matrices.bytes(), wanted.matrices.bytes());
        assert_eq!((packed.content, packed.shapes), (wanted.content, wanted.shapes));
        match packed.origin {
            Origin::Repacked(reason) => reason,
            Origin::Cache(_) => panic!("the cache was used"),
        }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn digest(model: &[u8]) -> [u8; 32] {
    *blake3::hash(model).as_bytes()
}

#[test]
fn what_was_saved_is_restored_with_the_same_digests() {
    let rig = Rig::new();
    assert!(rig.refusal().is_none());
    let path = rig.saved();
    let restored = rig.pack(MODEL, &rig.sources());
    assert!(matches!(restored.origin, Origin::Cache(model) if model == digest(MODEL)));
    let packed = Packer { threads: 3, release: &|_| (), cache: None }.pack(&rig.sources()).unwrap();
    assert_eq!(restored.matrices.bytes(), packed.matrices.bytes());
    assert_eq!((restored.content, restored.shapes), (packed.content, packed.shapes));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(rig.folder()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(rig.names(), [file_name(digest(MODEL))]);
}

#[test]
fn a_changed_byte_anywhere_is_noticed() {
    let rig = Rig::new();
    let path = rig.saved();
    let good = fs::read(&path).unwrap();
    for at in (0..HEAD_BYTES).chain([HEAD_BYTES, good.len() / 2, good.len() - 1]) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&path, &bad).unwrap();
        let reason = rig.refusal();
        match at < HEAD_BYTES {
            true => assert!(matches!(reason, Some(UnusableCache::Head)), "byte {at}: {reason:?}"),
            false => assert!(matches!(reason, Some(UnusableCache::Content)), "byte {at}: {reason:?}"),
        }
    }
    // Mended by the next save.
    assert_eq!(rig.saved(), path);
    assert_eq!(fs::read(&path).unwrap(), good);
}

#[test]
fn a_torn_or_longer_file_is_noticed() {
    let rig = Rig::new();
    let path = rig.saved();
    let good = fs::read(&path).unwrap();
    for length in [0, 15, HEAD_BYTES - 1, HEAD_BYTES, good.len() - 1, good.len() + 1] {
        let mut bad = good.clone();
        bad.resize(length, 0);
        fs::write(&path, &bad).unwrap();
        let reason = rig.refusal();
        match length < HEAD_BYTES {
            true => assert!(matches!(reason, Some(UnusableCache::Head)), "{length}: {reason:?}"),
            false => assert!(matches!(reason, Some(UnusableCache::Length { .. })), "{length}: {reason:?}"),
        }
    }
}

#[test]
fn a_head_that_fits_itself_but_not_the_model_is_noticed() {
    let rig = Rig::new();
    let path = rig.saved();
    let good = fs::read(&path).unwrap();
    let head = Head::decode(good.first_chunk().unwrap()).unwrap();
    let with = |head: Head| {
        fs::write(&path, [&head.encode()[..], &good[HEAD_BYTES..]].concat()).unwrap();
        rig.refusal()
    };
    assert!(matches!(with(Head { shapes: [7; 32], ..head }), Some(UnusableCache::Shapes)));
    assert!(matches!(with(Head { content: [7; 32], ..head }), Some(UnusableCache::Content)));
    assert!(with(Head { hint: [7; 32], ..head }).is_none());
    // A length that no memory has: nothing is allocated for it.
    for bytes in [0, head.bytes - 1, head.bytes + 1, u64::MAX] {
        assert!(matches!(with(Head { bytes, ..head }), Some(UnusableCache::Length { .. })));
    }
    let short = Head { bytes: 64, ..head };
    fs::write(&path, [&short.encode()[..], &good[HEAD_BYTES..][..64]].concat()).unwrap();
    assert!(matches!(rig.refusal(), Some(UnusableCache::Shapes)));
}

#[test]
fn other_matrices_of_the_same_file_are_not_taken_for_these() {
    let rig = Rig::new();
    rig.saved();
    let [first, second] = rig.sources();
    let packed = rig.pack(MODEL, &[second, first]);
    assert!(matches!(packed.origin, Origin::Repacked(Some(UnusableCache::Shapes))));
}

/// The folder's own order decides what is looked at first: with many files, some bad one comes before the good one.
#[test]
fn a_bad_file_that_fits_the_hint_does_not_hide_a_good_one() {
    let rig = Rig::new();
    let path = rig.saved();
    let good = fs::read(&path).unwrap();
    let head = Head::decode(good.first_chunk().unwrap()).unwrap();
    for number in 0..8u8 {
        let head = Head { model: [number; 32], shapes: [number; 32], ..head };
        let bytes = [&head.encode()[..], &good[HEAD_BYTES..]].concat();
        let to = rig.folder().join(file_name(head.model));
        fs::write(&to, bytes).unwrap();
        fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).unwrap();
    }
    assert!(matches!(rig.pack(MODEL, &rig.sources()).origin, Origin::Cache(model) if model == digest(MODEL)));
    fs::remove_file(&path).unwrap();
    assert!(matches!(rig.refusal(), Some(UnusableCache::Shapes)));
}

#[test]
fn a_known_model_is_looked_for_behind_others_of_its_hint() {
    let rig = Rig::new();
    let good = fs::read(rig.saved()).unwrap();
    let head = Head::decode(good.first_chunk().unwrap()).unwrap();
    for number in 0..8u8 {
        let head = Head { model: [number; 32], ..head };
        let to = rig.folder().join(file_name(head.model));
        fs::write(&to, [&head.encode()[..], &good[HEAD_BYTES..]].concat()).unwrap();
        fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let (folder, sources) = (rig.folder(), rig.sources());
    let of = |model| {
        let lookup = CacheLookup { folder: &folder, hint: hint(MODEL), model: Some(model) };
        Packer { threads: 2, release: &|_| (), cache: Some(&lookup) }.pack(&sources).unwrap().origin
    };
    for model in [digest(MODEL), [0; 32], [5; 32]] {
        assert!(matches!(of(model), Origin::Cache(found) if found == model));
    }
    assert!(matches!(of([9; 32]), Origin::Repacked(None)), "nothing is wrong with the caches of other models");
    let [from, to] = [[5; 32], [9; 32]].map(|model| folder.join(file_name(model)));
    fs::rename(from, to).unwrap();
    assert!(matches!(of([9; 32]), Origin::Repacked(Some(UnusableCache::Model))));
}

#[test]
fn a_name_of_another_version_is_not_opened() {
    let rig = Rig::new();
    let path = rig.saved();
    let name = file_name(digest(MODEL));
    for other in [name.replace(PACKED_LAYOUT, "rows16.0"), name.replace("-1.", "-2."), name.replace(".weights", "")] {
        let other = rig.folder().join(other);
        fs::rename(&path, &other).unwrap();
        assert!(rig.refusal().is_none());
        fs::rename(&other, &path).unwrap();
    }
    assert!(matches!(rig.pack(MODEL, &rig.sources()).origin, Origin::Cache(_)));
}

#[test]
fn what_is_no_private_regular_file_is_not_read() {
    let rig = Rig::new();
    let path = rig.saved();
    let elsewhere = rig.folder.path().join("elsewhere");
    for mode in [0o620, 0o602] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        assert!(matches!(rig.refusal(), Some(UnusableCache::NotPrivate)));
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(matches!(rig.refusal(), Some(UnusableCache::NotAFile)));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(rig.refusal(), Some(UnusableCache::NotAFile)));
    // Nor does it keep the next save from saying so.
    assert!(matches!(rig.unsaved(MODEL).save().unwrap_err(), SaveWeightsError::Write { .. }));
}

#[test]
fn a_folder_that_cannot_be_made_or_written_is_an_error_of_saving_alone() {
    let rig = Rig::new();
    fs::write(rig.folder.path().join("cache"), b"a file").unwrap();
    assert!(rig.refusal().is_none());
    assert!(matches!(rig.unsaved(MODEL).save().unwrap_err(), SaveWeightsError::Folder { .. }));
    // A device on which nothing can be made, also not by the superuser.
    let unsaved = UnsavedWeights { folder: "/proc/self/fd".into(), ..rig.unsaved(MODEL) };
    #[cfg(target_os = "linux")]
    assert!(matches!(unsaved.save().unwrap_err(), SaveWeightsError::Write { .. }));
}

/// A disk that is full: the system says so on the first write to this device.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_file() {
    let rig = Rig::new();
    rig.saved();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = rig.unsaved(MODEL).write_to(&full).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn many_that_write_at_once_leave_one_whole_file() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..8 {
                    rig.unsaved(MODEL).save().unwrap();
                    // Whoever looks meanwhile finds a whole one.
                    assert!(matches!(rig.pack(MODEL, &rig.sources()).origin, Origin::Cache(_)));
                }
            });
        }
    });
    assert_eq!(rig.names(), [file_name(digest(MODEL))]);
}

#[test]
fn a_save_removes_other_versions_and_leftovers_and_nothing_else() {
    let rig = Rig::new();
    let name = file_name(digest(MODEL));
    rig.saved();
    let put = |name: &str| fs::write(rig.folder().join(name), b"x").unwrap();
    put(&name.replace(PACKED_LAYOUT, "rows16.0"));
    put(".weights-left.tmp");
    put(".weights-held.tmp");
    let held = File::open(rig.folder().join(".weights-held.tmp")).unwrap();
    held.lock().unwrap();
    let strangers = ["notes.weights", "a-1.weights", "notes.txt"];
    strangers.iter().for_each(|name| put(name));
    rig.saved();
    let mut wanted = vec![".weights-held.tmp".to_owned(), name];
    wanted.extend(strangers.map(str::to_owned));
    wanted.sort();
    assert_eq!(rig.names(), wanted);
}

#[test]
fn only_the_newest_files_are_kept() {
    let rig = Rig::new();
    let models: Vec<[u8; 1]> = (0..6).map(|model| [model]).collect();
    for (age, model) in models.iter().enumerate() {
        rig.unsaved(model).save().unwrap();
        let file = File::options().write(true).open(rig.folder().join(file_name(digest(model)))).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(age as u64)).unwrap();
    }
    let mut wanted: Vec<_> = models[6 - FILES_MAX..].iter().map(|model| file_name(digest(model))).collect();
    wanted.sort();
    assert_eq!(rig.names(), wanted);
}

#[test]
fn a_hint_is_of_the_length_the_beginning_and_the_end() {
    let long: Vec<u8> = (0..300u32 << 10).map(|i| (i % 251) as u8).collect();
    let mut others = vec![long.clone(); 3];
    others[0][5] ^= 1;
    others[1].pop();
    others[2][(300 << 10) - 1] ^= 1;
    assert!(others.iter().all(|other| hint(other) != hint(&long)));
    assert_ne!(hint(b""), hint(b"a"));
}
