//! What an index is kept in: keys and short values in one sorted tree. Nothing that a store says is believed.

/// Longest value of a record.
pub(crate) const VALUE_BYTES_MAX: usize = 255;
/// Records that one question may bring; a store that has more is not asked further.
pub(crate) const RECORDS_MAX: usize = 65_536;

/// A key and its value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// Why a store did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreFault {
    /// It failed. It is made anew.
    #[error("{0}")]
    Failed(String),
    /// It cannot take more now: the disk has little space left, and the log goes first; or a segment is damaged. Nothing is
    /// wrong with what is there.
    #[error("{0}")]
    Behind(String),
}

/// A store. It is opened, used and closed by one thread.
pub(crate) trait Store: Send {
    /// Adds records. What is there stays; the same record may be added again.
    fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault>;

    /// The value of a key.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault>;

    /// The records from `from` on and before `to`, in the order of their keys, `records_max` at most.
    fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault>;

    /// Lets what was added outlive the process.
    fn flush(&mut self) -> Result<(), StoreFault>;
}
