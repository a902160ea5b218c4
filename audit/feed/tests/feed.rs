//! A feed that is written and read, and what is done to it in between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_feed::{EngineFeed, Feed, FeedSettings, Record};
use policies_domain::{
    CustodyAct, CustodyEvent, CustodyRecord, Generation, Label, Owner, PageId, PageLife, PageRead, PageTrace,
    QuarantineReason, RequestId, TenantId,
};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const SETTINGS: FeedSettings = FeedSettings { run: [7; 16], bytes_max: 1 << 30, group_may_read: false };

fn tenant(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

fn event(page: u32, generation: u32, label: Label, act: CustodyAct) -> CustodyRecord {
    let life = PageLife { page: PageId(page), generation: Generation(generation) };
    CustodyRecord::Event(CustodyEvent {
        number: 0,
        step_issued: 0,
        step_retired: 0,
        life,
        label,
        owner: Owner::Nobody,
        act,
    })
}

fn allocated(page: u32, generation: u32, of: u32) -> CustodyRecord {
    event(page, generation, tenant(of), CustodyAct::Allocated { tag: 1 })
}

fn begin(page: u32, generation: u32, of: u32) -> Record {
    Record::Begin { page: PageId(page), generation: Generation(generation), label: tenant(of) }
}

fn end(page: u32, generation: u32) -> Record {
    Record::End { page: PageId(page), generation: Generation(generation) }
}

fn read_page(page: u32, generation: u32) -> PageRead {
    PageRead { page: PageId(page), generation: Generation(generation), label: Label::NOBODY, shared: false }
}

/// All that is there. When a file began is not compared.
fn all(feed: &mut Feed) -> Vec<Record> {
    let timeless = |record| match record {
        Record::Start { run, continues, wall_us } => {
            assert!(wall_us > 1_700_000_000_000_000);
            Record::Start { run, continues, wall_us: 0 }
        }
        other => other,
    };
    std::iter::from_fn(|| feed.read_next().unwrap()).map(timeless).collect()
}

fn start(run: u8, continues: bool) -> Record {
    Record::Start { run: [run; 16], continues, wall_us: 0 }
}

fn files(feeds: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(feeds.join("engine")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        path.file_name().is_some_and(|name| name.len() == 12 && name.to_string_lossy().parse::<u64>().is_ok())
    });
    files.sort();
    files
}

#[test]
fn lives_and_passes_come_in_the_order_in_which_they_happened() {
    let feeds = tempfile::tempdir().unwrap();
    let mut reading = Feed::of(feeds.path());
    assert_eq!(reading.read_next().unwrap(), None, "there is none yet");
    let feed = EngineFeed::open(feeds.path(), SETTINGS).unwrap();
    // The ledger's first page is the thousandth of all.
    let sealed = event(2, 1, tenant(1), CustodyAct::Sealed);
    feed.custody(1000, &[allocated(2, 1, 1), sealed, allocated(3, 5, 2)]);
    let request = RequestId::from_bytes([9; 16]);
    feed.pass(request, &PageTrace { kept: 1, pages: vec![read_page(1002, 1)] });
    // A handed-over page begins a new life without having been free.
    let committed = CustodyAct::Committed { tag: 2, fill: 16, from: Owner::Nobody };
    feed.custody(1000, &[event(2, 3, tenant(1), committed), event(3, 6, Label::NOBODY, CustodyAct::Freed)]);
    let reason = QuarantineReason::TagMismatch;
    feed.custody(1000, &[event(2, 3, tenant(1), CustodyAct::Quarantined { reason })]);
    feed.custody(0, &[CustodyRecord::Lost { first: 8, events: 5 }]);
    drop(feed);
    let pass = Record::Pass { request, kept: 1, pages: vec![(PageId(1002), Generation(1))] };
    let wanted = [
        start(7, false),
        begin(1002, 1, 1),
        begin(1003, 5, 2),
        pass,
        end(1002, 1),
        begin(1002, 3, 1),
        end(1003, 5),
        end(1002, 3),
        Record::Lost { records: 5 },
    ];
    assert_eq!(all(&mut reading), wanted);
    // The next run begins a file of its own, and the reader goes on in it.
    let feed = EngineFeed::open(feeds.path(), FeedSettings { run: [8; 16], ..SETTINGS }).unwrap();
    feed.custody(0, &[allocated(1, 1, 1)]);
    drop(feed);
    assert_eq!(all(&mut reading), [start(8, false), begin(1, 1, 1)]);
    assert_eq!(all(&mut Feed::of(feeds.path())).len(), wanted.len() + 2, "and who begins later reads all of it");
}

#[test]
fn a_feed_is_read_while_it_is_written_and_has_one_writer() {
    let feeds = tempfile::tempdir().unwrap();
    let feed = EngineFeed::open(feeds.path(), SETTINGS).unwrap();
    let error = EngineFeed::open(feeds.path(), SETTINGS).unwrap_err().to_string();
    assert!(error.ends_with("another process writes it"), "{error}");
    let mut reading = Feed::of(feeds.path());
    for generation in 0..50 {
        feed.custody(
            0,
            &[allocated(4, 2 * generation + 1, 1), event(4, 2 * generation + 2, Label::NOBODY, CustodyAct::Freed)],
        );
        let mut seen = Vec::new();
        while !seen.contains(&end(4, 2 * generation + 1)) {
            seen.extend(all(&mut reading));
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_file_that_is_full_is_followed_by_one_that_says_what_there_is_and_old_ones_go() {
    let feeds = tempfile::tempdir().unwrap();
    let feed = EngineFeed::open(feeds.path(), FeedSettings { bytes_max: 1 << 20, ..SETTINGS }).unwrap();
    feed.custody(0, &[allocated(1, 1, 1)]);
    let pages: Vec<PageRead> = (0..1_000).map(|page| read_page(page, 1)).collect();
    let trace = PageTrace { kept: 0, pages };
    let mut reading = Feed::of(feeds.path());
    let (mut starts, mut passes, mut begins) = (Vec::new(), 0, 0);
    for number in 0..300_u32 {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        feed.pass(RequestId::from_bytes(id), &trace);
        // Not faster than it is written: what finds no room is lost.
        while passes <= number {
            for record in all(&mut reading) {
                match record {
                    Record::Start { continues, .. } => starts.push(continues),
                    Record::Pass { .. } => passes += 1,
                    Record::Begin { .. } => begins += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    drop(feed);
    assert!(starts.len() >= 6 && !starts[0] && starts[1..].iter().all(|continues| *continues), "{starts:?}");
    assert_eq!((begins, passes), (starts.len(), 300), "each file says what there is");
    let left = files(feeds.path());
    assert!(left.len() <= 9 && left.len() < starts.len(), "{left:?}");
    // Who begins now has missed something, and is not told that a file continues one that it has not seen.
    assert_eq!(all(&mut Feed::of(feeds.path()))[0], start(7, true));
    // One in the middle is gone, or damaged.
    let middle = &left[left.len() / 2];
    let bytes = std::fs::read(middle).unwrap();
    let gaps = || {
        let starts = all(&mut Feed::of(feeds.path())).into_iter();
        starts.filter(|record| matches!(record, Record::Start { continues: false, .. })).count()
    };
    assert_eq!(gaps(), 0);
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    std::fs::write(middle, &damaged).unwrap();
    assert_eq!(gaps(), 1);
    std::fs::write(middle, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(gaps(), 1);
    std::fs::remove_file(middle).unwrap();
    assert_eq!(gaps(), 1);
}

#[test]
fn what_is_damaged_or_gone_shows_as_a_gap() {
    let feeds = tempfile::tempdir().unwrap();
    let mut sizes = Vec::new();
    for run in 1..=3 {
        let feed = EngineFeed::open(feeds.path(), FeedSettings { run: [run; 16], ..SETTINGS }).unwrap();
        feed.custody(0, &[allocated(run.into(), 1, 1)]);
        drop(feed);
        sizes.push(std::fs::metadata(&files(feeds.path())[usize::from(run) - 1]).unwrap().len());
    }
    let whole = all(&mut Feed::of(feeds.path()));
    assert_eq!(whole.len(), 6);
    let second = &files(feeds.path())[1];
    let bytes = std::fs::read(second).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(second, &damaged).unwrap();
        let read = all(&mut Feed::of(feeds.path()));
        assert!(read.len() < whole.len(), "byte {at}: {read:?}");
        assert_eq!(read[..2], whole[..2], "byte {at}");
        assert_eq!(read[read.len() - 2..], whole[4..], "byte {at}: what follows is there");
    }
    // Zeros, as a loss of power leaves them, are no records.
    std::fs::write(second, [&bytes[..], &[0; 4096]].concat()).unwrap();
    assert_eq!(all(&mut Feed::of(feeds.path())), whole);
    // Whatever else lies there.
    for stray in ["7", "+7", "18446744073709551615", "00000000000x"] {
        std::fs::write(feeds.path().join("engine").join(stray), b"stray").unwrap();
    }
    assert_eq!(all(&mut Feed::of(feeds.path())), whole);
    std::fs::create_dir(feeds.path().join("engine/000000000099")).unwrap();
    assert_eq!(all(&mut Feed::of(feeds.path())), whole);
    drop(EngineFeed::open(feeds.path(), SETTINGS).unwrap());
    std::fs::remove_file(second).unwrap();
    assert_eq!(all(&mut Feed::of(feeds.path())), [&whole[..2], &whole[4..], &[start(7, false)]].concat());
    assert_eq!(sizes.len(), 3);
}

#[test]
fn a_feed_that_cannot_be_written_goes_on_when_it_can_with_what_is_so_then() {
    let feeds = tempfile::tempdir().unwrap();
    let feed = EngineFeed::open(feeds.path(), FeedSettings { bytes_max: 0, ..SETTINGS }).unwrap();
    feed.custody(0, &[allocated(1, 1, 1), allocated(2, 1, 2)]);
    let mut first = Feed::of(feeds.path());
    while !all(&mut first).contains(&begin(2, 1, 2)) {
        std::thread::yield_now();
    }
    let (folder, aside) = (feeds.path().join("engine"), feeds.path().join("aside"));
    std::fs::rename(&folder, &aside).unwrap();
    // More than a file takes: the next one cannot be begun.
    let pages = (0..20_000).map(|page| read_page(page, 1)).collect();
    feed.pass(RequestId::from_bytes([1; 16]), &PageTrace { kept: 0, pages });
    while std::fs::metadata(aside.join("000000000001")).unwrap().len() < 1 << 17 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    feed.custody(0, &[event(1, 2, Label::NOBODY, CustodyAct::Freed)]);
    std::fs::create_dir(&folder).unwrap();
    feed.custody(0, &[allocated(3, 1, 1)]);
    drop(feed);
    let mut lives = std::collections::BTreeMap::new();
    for record in all(&mut Feed::of(feeds.path())) {
        match record {
            Record::Start { .. } => lives.clear(),
            Record::Begin { page, generation, .. } => drop(lives.insert(page, generation)),
            Record::End { page, .. } => drop(lives.remove(&page)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lives, [2, 3].map(|page| (PageId(page), Generation(1))).into());
    assert!(files(feeds.path()).iter().all(|file| file.metadata().unwrap().len() > 0), "no file that is empty");
}

#[test]
fn a_feed_is_for_its_owner_and_for_the_group_where_that_may_read() {
    for (group_may_read, folder_mode, file_mode) in [(false, 0o700, 0o600), (true, 0o750, 0o640)] {
        let feeds = tempfile::tempdir().unwrap();
        let path = feeds.path().join("feeds");
        drop(EngineFeed::open(&path, FeedSettings { group_may_read, ..SETTINGS }).unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("engine"))), (folder_mode, folder_mode));
        assert_eq!(mode(&files(&path)[0]), file_mode);
    }
}

#[test]
fn a_link_in_the_place_of_a_feed_is_not_followed() {
    let (feeds, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mode = || std::fs::metadata(elsewhere.path()).unwrap().permissions().mode();
    let before = mode();
    for link in ["feeds", "other/engine"] {
        let link = feeds.path().join(link);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    }
    for feeds in ["feeds", "other"].map(|name| feeds.path().join(name)) {
        let error = EngineFeed::open(&feeds, SETTINGS).unwrap_err().to_string();
        assert!(error.ends_with("it is a link, or in one"), "{error}");
    }
    assert_eq!(mode(), before);
}
