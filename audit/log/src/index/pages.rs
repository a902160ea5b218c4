//! Which requests read a page. Too many to look each up in the segments, and a trace may be gone later, so what one block
//! says of a 64th of all pages has a keyed tag as its last record: whatever is missing there, or is too much, is noticed,
//! and the block's traces are read instead.

use super::BLOCK;
use super::record::key;
use super::store::{Record, VALUE_BYTES_MAX};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// Pages are spread over so many buckets by their number.
const BUCKETS: u8 = 64;
/// A bucket of its own: sealed entries whose trace is not there, so that nobody knows what they read.
const UNKNOWN: u8 = BUCKETS;
const TAG_PAGE: u32 = u32::MAX;
const TAG_BYTES: usize = 16;
/// A generation and an entry's place in its block.
const READER_BYTES: usize = 6;

pub(crate) type TagKey = Zeroizing<[u8; 32]>;

/// The readers that one block has.
#[derive(Debug, Default)]
pub(crate) struct BlockReaders {
    /// Page -> (generation, entry).
    pages: BTreeMap<u32, Vec<(u32, u64)>>,
    unknown: Vec<(u32, u64)>,
}

impl BlockReaders {
    pub(crate) fn read(&mut self, page: u32, generation: u32, index: u64) {
        self.pages.entry(page).or_default().push((generation, index));
    }

    pub(crate) fn unknown(&mut self, index: u64) {
        self.unknown.push((0, index));
    }

    /// Entries that read the page in that life.
    pub(crate) fn readers(&self, page: u32, generation: u32) -> Vec<u64> {
        let readers = self.pages.get(&page).map(Vec::as_slice).unwrap_or_default();
        let mut readers: Vec<u64> = readers.iter().filter(|(life, _)| *life == generation).map(|(_, at)| *at).collect();
        readers.dedup();
        readers
    }

    pub(crate) fn unknown_readers(&self) -> Vec<u64> {
        self.unknown.iter().map(|(_, index)| *index).collect()
    }

    /// The records of all buckets, with their tags.
    pub(crate) fn records(&self, tag_key: &TagKey, block: u64) -> Vec<Record> {
        let mut buckets: BTreeMap<u8, Vec<Record>> = (0..=UNKNOWN).map(|bucket| (bucket, Vec::new())).collect();
        for (page, readers) in &self.pages {
            let records = buckets.entry(bucket_of(*page)).or_default();
            push_records(records, bucket_of(*page), block, *page, readers);
        }
        push_records(buckets.entry(UNKNOWN).or_default(), UNKNOWN, block, 0, &self.unknown);
        let mut all = Vec::new();
        for (bucket, mut records) in buckets {
            let tag = tag(tag_key, bucket, block, &records);
            records.push((page_key(bucket, block, TAG_PAGE, u16::MAX), tag.to_vec()));
            all.append(&mut records);
        }
        all
    }
}

fn bucket_of(page: u32) -> u8 {
    u8::try_from(page % u32::from(BUCKETS)).unwrap_or_default()
}

fn page_key(bucket: u8, block: u64, page: u32, part: u16) -> Vec<u8> {
    key(5, &[&[bucket], &block.to_be_bytes(), &page.to_be_bytes(), &part.to_be_bytes()])
}

fn push_records(records: &mut Vec<Record>, bucket: u8, block: u64, page: u32, readers: &[(u32, u64)]) {
    for (part, readers) in (0..).zip(readers.chunks(VALUE_BYTES_MAX / READER_BYTES)) {
        let mut value = Vec::with_capacity(readers.len() * READER_BYTES);
        for (generation, index) in readers {
            value.extend_from_slice(&generation.to_be_bytes());
            let place = u16::try_from(index % BLOCK).unwrap_or_default();
            value.extend_from_slice(&place.to_be_bytes());
        }
        records.push((page_key(bucket, block, page, part), value));
    }
}

fn tag(tag_key: &TagKey, bucket: u8, block: u64, records: &[Record]) -> [u8; TAG_BYTES] {
    let mut key_block = hmac::digest::generic_array::GenericArray::default();
    key_block.iter_mut().zip(tag_key.iter()).for_each(|(to, from)| *to = *from);
    let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new(&key_block);
    mac.update(&[bucket]);
    mac.update(&block.to_be_bytes());
    for part in records.iter().flat_map(|(key, value)| [key, value]) {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    let mut tag = [0; TAG_BYTES];
    tag.iter_mut().zip(mac.finalize().into_bytes()).for_each(|(to, from)| *to = from);
    tag
}

/// What a store is asked about a page: first key and the key behind the last, for one block.
pub(crate) fn page_range(page: u32, block: u64) -> (Vec<u8>, Vec<u8>) {
    bucket_range(bucket_of(page), block)
}

pub(crate) fn unknown_range(block: u64) -> (Vec<u8>, Vec<u8>) {
    bucket_range(UNKNOWN, block)
}

fn bucket_range(bucket: u8, block: u64) -> (Vec<u8>, Vec<u8>) {
    (key(5, &[&[bucket], &block.to_be_bytes()]), key(5, &[&[bucket], &(block + 1).to_be_bytes()]))
}

/// What a store answered for a page and a block. `None` when the answer is not whole.
pub(crate) fn readers_in(
    tag_key: &TagKey,
    block: u64,
    page: u32,
    generation: u32,
    answer: &[Record],
) -> Option<Vec<u64>> {
    checked(tag_key, bucket_of(page), block, page, answer, Some(generation))
}

/// The same for entries whose reads are not known.
pub(crate) fn unknown_in(tag_key: &TagKey, block: u64, answer: &[Record]) -> Option<Vec<u64>> {
    checked(tag_key, UNKNOWN, block, 0, answer, None)
}

fn checked(
    tag_key: &TagKey,
    bucket: u8,
    block: u64,
    page: u32,
    answer: &[Record],
    generation: Option<u32>,
) -> Option<Vec<u64>> {
    let ((last_key, held), records) = answer.split_last()?;
    if *last_key != page_key(bucket, block, TAG_PAGE, u16::MAX) || tag(tag_key, bucket, block, records) != **held {
        return None;
    }
    let first = block * BLOCK;
    let of_page = key(5, &[&[bucket], &block.to_be_bytes(), &page.to_be_bytes()]);
    let mut readers = Vec::new();
    for (_, value) in records.iter().filter(|(key, _)| key.starts_with(&of_page)) {
        for reader in value.chunks_exact(READER_BYTES) {
            let (life, place) = reader.split_first_chunk::<4>()?;
            let place = place.first_chunk::<2>()?;
            if generation.is_none_or(|generation| u32::from_be_bytes(*life) == generation) {
                readers.push(first + u64::from(u16::from_be_bytes(*place)));
            }
        }
    }
    readers.dedup();
    Some(readers)
}
