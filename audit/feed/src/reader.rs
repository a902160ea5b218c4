//! Reads a feed while it is written.

use crate::record::Record;
use crate::writer::{engine_folder, numbers, path_of};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// A block has no more bytes than this, whatever its head says.
const BLOCK_BYTES_MAX: usize = 256 << 20;

/// The system did not let the feed be read.
#[derive(Debug, thiserror::Error)]
#[error("the engine's feed in `{}` cannot be read: {source}", folder.display())]
pub struct FeedError {
    /// Where it is.
    pub folder: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// An engine's feed, from the oldest file that is there.
#[derive(Debug)]
pub struct Feed {
    folder: PathBuf,
    file: Option<Open>,
    /// Records of the last block that are not given out yet.
    block: Vec<u8>,
    at: usize,
    /// Something is missing before what is read next.
    gap: bool,
}

#[derive(Debug)]
struct Open {
    number: u64,
    file: File,
    /// The next block begins here.
    at: u64,
}

enum Block {
    Whole,
    /// Nothing more is there now, or ever.
    NotYet,
    Damaged,
}

impl Feed {
    /// Of the engine whose feed is in this folder of feeds. There need not be one yet.
    #[must_use]
    pub fn of(feeds: &Path) -> Self {
        Self { folder: engine_folder(feeds), file: None, block: Vec::new(), at: 0, gap: false }
    }

    /// The next record. `None`: there is no more at the moment. What is damaged, or gone for its age, shows as a file that does not
    /// continue the one before.
    ///
    /// # Errors
    /// [`FeedError`].
    pub fn read_next(&mut self) -> Result<Option<Record>, FeedError> {
        self.read().map_err(|source| FeedError { folder: self.folder.clone(), source })
    }

    fn read(&mut self) -> io::Result<Option<Record>> {
        loop {
            if let Some(rest) = self.block.get(self.at..).filter(|rest| !rest.is_empty()) {
                match Record::decode(rest) {
                    Some((Record::Start { run, continues, wall_us }, length)) => {
                        self.at += length;
                        let continues = continues && !std::mem::take(&mut self.gap);
                        return Ok(Some(Record::Start { run, continues, wall_us }));
                    }
                    Some((record, length)) => {
                        self.at += length;
                        return Ok(Some(record));
                    }
                    // A sum that fits over what nobody wrote: as if it did not.
                    None => {
                        (self.at, self.gap) = (self.block.len(), true);
                        if !self.follow()? {
                            return Ok(None);
                        }
                    }
                }
            } else if !self.read_block()? {
                return Ok(None);
            }
        }
    }

    /// `false`: there is none now.
    fn read_block(&mut self) -> io::Result<bool> {
        loop {
            if self.file.is_none() {
                if !self.follow()? {
                    return Ok(false);
                }
                continue;
            }
            match self.block_here()? {
                Block::Whole => return Ok(true),
                Block::Damaged => self.gap = true,
                Block::NotYet if self.next_number()?.is_none() => return Ok(false),
                // What is in this file was written before the next one was begun: it is all there now.
                Block::NotYet => match self.block_here()? {
                    Block::Whole => return Ok(true),
                    Block::NotYet | Block::Damaged => self.gap |= self.has_rest()?,
                },
            }
            if !self.follow()? {
                return Ok(false);
            }
        }
    }

    fn block_here(&mut self) -> io::Result<Block> {
        let Some(Open { file, at, .. }) = &mut self.file else { return Ok(Block::NotYet) };
        file.seek(SeekFrom::Start(*at))?;
        let mut head = [0; 8];
        if !fill(file, &mut head)? {
            return Ok(Block::NotYet);
        }
        let [l0, l1, l2, l3, s0, s1, s2, s3] = head;
        let length = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        // Nobody writes an empty block, and zeros would be a valid one.
        if length == 0 || length > BLOCK_BYTES_MAX {
            return Ok(Block::Damaged);
        }
        // No memory for what is not there.
        if file.metadata()?.len() < *at + 8 + length as u64 {
            return Ok(Block::NotYet);
        }
        self.block.clear();
        self.block.resize(length, 0);
        self.at = length;
        if !fill(file, &mut self.block)? {
            return Ok(Block::NotYet);
        }
        if crc32c::crc32c(&self.block) != u32::from_be_bytes([s0, s1, s2, s3]) {
            return Ok(Block::Damaged);
        }
        (self.at, *at) = (0, *at + 8 + length as u64);
        Ok(Block::Whole)
    }

    /// Whether the file ends within a block.
    fn has_rest(&self) -> io::Result<bool> {
        let Some(Open { file, at, .. }) = &self.file else { return Ok(false) };
        Ok(file.metadata()?.len() > *at)
    }

    fn next_number(&self) -> io::Result<Option<u64>> {
        let numbers = match numbers(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            numbers => numbers?,
        };
        let after = self.file.as_ref().map_or(0, |open| open.number);
        Ok(numbers.into_iter().find(|number| *number > after))
    }

    /// Goes on with the next file. `false`: there is none.
    fn follow(&mut self) -> io::Result<bool> {
        loop {
            let Some(number) = self.next_number()? else { return Ok(false) };
            let before = self.file.as_ref().map(|open| open.number);
            match File::open(path_of(&self.folder, number)) {
                Ok(file) => {
                    self.gap |= before.is_some_and(|before| before + 1 != number);
                    self.file = Some(Open { number, file, at: 0 });
                    return Ok(true);
                }
                // It went for its age a moment ago.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// `false`: the file ends before.
fn fill(file: &mut File, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}
