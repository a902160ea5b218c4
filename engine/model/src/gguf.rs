//! Reading GGUF, versions 2 and 3: metadata, tensor directory, tensor bytes.
//!
//! The file is untrusted. Every count is bounded by the bytes that are left before anything is allocated for it,
//! every offset is checked against the file, and whatever is wrong is named. Nothing here knows what a model is.
//! Source: the GGUF specification, <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod reader;
mod value;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use engine_kernels::MappedFile;

use crate::tensor_kind::TensorKind;
use reader::Reader;
pub use value::{Array, Value};

/// Most metadata keys in a file; known models have under 60.
const KEYS_MAX: u64 = 4_096;
/// Most tensors in a file; a 405-billion-parameter model has about 1,200, mixtures of experts a few thousand.
const TENSORS_MAX: u64 = 65_536;
/// Longest key and tensor name, bytes; the specification allows 65,535 and 64, known names have under 64.
const NAME_BYTES_MAX: u64 = 256;
/// Most dimensions of a tensor (ggml's limit).
const DIMENSIONS_MAX: u32 = 4;
/// Largest alignment of the data section; files use 32.
const ALIGNMENT_MAX: u64 = 65_536;
/// Alignment when `general.alignment` is absent.
const ALIGNMENT_DEFAULT: u64 = 32;

/// Why a file is not a GGUF file that can be read. Offsets and sizes are bytes from the file's start.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("cannot read the file: {0}")]
    Io(#[from] std::io::Error),
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it does not begin with `GGUF`")]
    Magic,
    /// Another version, or version 3 in big-endian order.
    #[error("GGUF version {version} is not supported (2 and 3 are, little-endian)")]
    Version {
        /// As read.
        version: u32,
    },
    /// The file ends inside something.
    #[error("the file is cut short: {what} at byte {offset} needs {needed} bytes, {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// Its size.
        needed: u64,
        /// What the file still has.
        left: u64,
    },
    /// A count is larger than the rest of the file could hold.
    #[error("the file is cut short or damaged: {what} is {count}, its rest has room for {count_max}")]
    NoRoom {
        /// What is counted.
        what: &'static str,
        /// As read.
        count: u64,
        /// How many there could be.
        count_max: u64,
    },
    /// A count is larger than any real model has.
    #[error("{what} is {count}, more than the {count_max} accepted")]
    Count {
        /// What is counted.
        what: &'static str,
        /// As read.
        count: u64,
        /// The bound.
        count_max: u64,
    },
    /// A string is not UTF-8.
    #[error("{what} at byte {offset} is not UTF-8")]
    NotUtf8 {
        /// What was being read.
        what: &'static str,
        /// Where the string's bytes begin.
        offset: u64,
    },
    /// A key's value has a type that the specification does not have, or an array of arrays.
    #[error("key `{key}` has value type {kind}, which is not supported")]
    ValueKind {
        /// The key.
        key: String,
        /// The type's number.
        kind: u32,
    },
    /// A truth value is neither 0 nor 1.
    #[error("the truth value at byte {offset} is {value}")]
    Bool {
        /// Where.
        offset: u64,
        /// As read.
        value: u8,
    },
    /// The same key twice.
    #[error("key `{0}` occurs twice")]
    DuplicateKey(String),
    /// `general.alignment` is not a power of two in range.
    #[error("`general.alignment` is {alignment}, not a power of two from 1 to {ALIGNMENT_MAX}")]
    Alignment {
        /// As read; 0 when it is not a number.
        alignment: u64,
    },
    /// The same tensor twice.
    #[error("tensor `{0}` occurs twice")]
    DuplicateTensor(String),
    /// A tensor's element type is not one of ggml's.
    #[error("tensor `{tensor}` has unknown type {kind}")]
    TensorKind {
        /// The tensor.
        tensor: String,
        /// The type's number.
        kind: u32,
    },
    /// No dimensions, too many, one of size 0, rows that are not whole blocks, or more bytes than 2^63.
    #[error("tensor `{tensor}` has an impossible shape {shape:?} for type {kind}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// As read.
        shape: Vec<u64>,
        /// Its element type.
        kind: TensorKind,
    },
    /// A tensor does not begin at a multiple of the alignment.
    #[error("tensor `{tensor}` begins at byte {offset} of the data, not a multiple of {alignment}")]
    TensorAlignment {
        /// The tensor.
        tensor: String,
        /// Offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor ends after the file.
    #[error("tensor `{tensor}` ends at byte {end}, after the end of the file at {file_bytes}")]
    TensorOutside {
        /// The tensor.
        tensor: String,
        /// Where it would end.
        end: u64,
        /// The file's size.
        file_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    TensorOverlap {
        /// The one that begins earlier.
        first: String,
        /// The other.
        second: String,
    },
}

/// One entry of the tensor directory.
#[derive(Debug)]
struct Tensor {
    shape: Vec<usize>,
    kind: TensorKind,
    bytes: Range<usize>,
}

/// A tensor as it lies in the file.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Sizes, the fastest-changing dimension first: a matrix is `[columns, rows]`.
    pub shape: &'a [usize],
    /// Element type.
    pub kind: TensorKind,
    /// Exactly the tensor's bytes, row-major, little-endian.
    pub bytes: &'a [u8],
}

#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    #[cfg(test)]
    Memory(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file.bytes(),
            #[cfg(test)]
            Self::Memory(bytes) => bytes,
        }
    }
}

/// An opened GGUF file: directory read and checked, tensors still in the file.
#[derive(Debug)]
pub struct Gguf {
    source: Source,
    directory: Directory,
}

/// Everything before the data section.
#[derive(Debug)]
struct Directory {
    version: u32,
    metadata: HashMap<String, Value>,
    /// In the file's order.
    names: Vec<String>,
    tensors: HashMap<String, Tensor>,
}

impl Gguf {
    /// Maps the file and reads its directory.
    ///
    /// # Errors
    /// [`GgufError`], naming the first thing that is wrong.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = MappedFile::open(path)?;
        let directory = Directory::read(file.bytes())?;
        Ok(Self { source: Source::Mapped(file), directory })
    }

    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        let directory = Directory::read(&bytes)?;
        Ok(Self { source: Source::Memory(bytes), directory })
    }

    /// 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.directory.version
    }

    /// The whole file.
    #[must_use]
    pub fn file_bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    /// Gives the memory of a part of [`Gguf::file_bytes`] back until it is read again.
    pub(crate) fn release(&self, part: &[u8]) {
        match &self.source {
            Source::Mapped(file) => file.release(part),
            #[cfg(test)]
            Source::Memory(_) => {}
        }
    }

    /// The value of a metadata key such as `general.architecture`.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&Value> {
        self.directory.metadata.get(key)
    }

    /// How many metadata keys there are.
    #[must_use]
    pub fn metadata_len(&self) -> usize {
        self.directory.metadata.len()
    }

    /// A tensor by name, such as `blk.0.attn_q.weight`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let tensor = self.directory.tensors.get(name)?;
        let bytes = self.source.bytes().get(tensor.bytes.clone())?;
        Some(TensorView { shape: &tensor.shape, kind: tensor.kind, bytes })
    }

    /// All tensors' names, in the file's order.
    pub fn tensor_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.directory.names.iter().map(String::as_str)
    }
}

impl Directory {
    fn read(file: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader::new(file);
        if reader.take("the magic", 4).ok() != Some(b"GGUF") {
            return Err(GgufError::Magic);
        }
        let version = reader.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { version });
        }
        // A tensor needs at least name length, dimension count, one dimension, type and offset; a key at least its
        // length, a type and a byte.
        let tensors = reader.count("the number of tensors", 8 + 4 + 8 + 4 + 8, TENSORS_MAX)?;
        let keys = reader.count("the number of keys", 8 + 4 + 1, KEYS_MAX)?;

        let mut metadata = HashMap::with_capacity(keys);
        for _ in 0..keys {
            let key = reader.string("a key", "a key's length", NAME_BYTES_MAX)?;
            let value = Value::read(&mut reader, &key)?;
            if metadata.contains_key(&key) {
                return Err(GgufError::DuplicateKey(key));
            }
            metadata.insert(key, value);
        }
        let alignment = alignment(&metadata)?;

        let mut infos = Vec::with_capacity(tensors);
        for _ in 0..tensors {
            infos.push(TensorInfo::read(&mut reader)?);
        }
        let data = reader.offset().next_multiple_of(alignment);
        Self::place(file, version, metadata, infos, data, alignment)
    }

    /// Turns offsets into ranges of the file; refuses what is misaligned, outside or shared.
    fn place(
        file: &[u8],
        version: u32,
        metadata: HashMap<String, Value>,
        infos: Vec<TensorInfo>,
        data: u64,
        alignment: u64,
    ) -> Result<Self, GgufError> {
        let file_bytes = file.len() as u64;
        let mut names = Vec::with_capacity(infos.len());
        let mut tensors: HashMap<String, Tensor> = HashMap::with_capacity(infos.len());
        for info in infos {
            let TensorInfo { name, shape, kind, offset } = info;
            if offset % alignment != 0 {
                return Err(GgufError::TensorAlignment { tensor: name, offset, alignment });
            }
            let Some(size) = size_bytes(&shape, kind) else {
                return Err(GgufError::Shape { tensor: name, shape, kind });
            };
            let begin = data.saturating_add(offset);
            let end = begin.saturating_add(size);
            // What lies inside the file is addressable: the conversions cannot fail where the comparison holds.
            let (Ok(from), Ok(to), true) = (usize::try_from(begin), usize::try_from(end), end <= file_bytes) else {
                return Err(GgufError::TensorOutside { tensor: name, end, file_bytes });
            };
            let shape = shape.iter().map(|&dimension| dimension as usize).collect();
            if tensors.insert(name.clone(), Tensor { shape, kind, bytes: from..to }).is_some() {
                return Err(GgufError::DuplicateTensor(name));
            }
            names.push(name);
        }

        let mut by_place: Vec<(&Range<usize>, &String)> = tensors.iter().map(|(name, t)| (&t.bytes, name)).collect();
        by_place.sort_unstable_by_key(|(bytes, _)| bytes.start);
        for pair in by_place.windows(2) {
            if let [(first, first_name), (second, second_name)] = pair
                && second.start < first.end
            {
                return Err(GgufError::TensorOverlap { first: (*first_name).clone(), second: (*second_name).clone() });
            }
        }
        Ok(Self { version, metadata, names, tensors })
    }
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<u64, GgufError> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(ALIGNMENT_DEFAULT) };
    let alignment = value.as_u64().unwrap_or(0);
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
        return Err(GgufError::Alignment { alignment });
    }
    Ok(alignment)
}

/// A directory entry as it stands in the file.
struct TensorInfo {
    name: String,
    shape: Vec<u64>,
    kind: TensorKind,
    offset: u64,
}

impl TensorInfo {
    fn read(reader: &mut Reader<'_>) -> Result<Self, GgufError> {
        let name = reader.string("a tensor's name", "the length of a tensor's name", NAME_BYTES_MAX)?;
        let dimensions = reader.u32("a tensor's number of dimensions")?;
        if dimensions == 0 || dimensions > DIMENSIONS_MAX {
            return Err(GgufError::Count {
                what: "a tensor's number of dimensions",
                count: dimensions.into(),
                count_max: DIMENSIONS_MAX.into(),
            });
        }
        let mut shape = Vec::with_capacity(dimensions as usize);
        for _ in 0..dimensions {
            shape.push(reader.u64("a tensor's dimension")?);
        }
        let number = reader.u32("a tensor's type")?;
        let Some(kind) = TensorKind::from_number(number) else {
            return Err(GgufError::TensorKind { tensor: name, kind: number });
        };
        let offset = reader.u64("a tensor's offset")?;
        Ok(Self { name, shape, kind, offset })
    }
}

/// Bytes of a tensor; `None` when the shape cannot be.
fn size_bytes(shape: &[u64], kind: TensorKind) -> Option<u64> {
    let block_weights = u64::from(kind.block_weights());
    let columns = *shape.first()?;
    if shape.contains(&0) || columns % block_weights != 0 {
        return None;
    }
    let weights = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension))?;
    let size = (weights / block_weights).checked_mul(u64::from(kind.block_bytes()))?;
    i64::try_from(size).is_ok().then_some(size)
}

#[cfg(test)]
pub(crate) mod tests;
