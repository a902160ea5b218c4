//! CPU kernels and the memory they work on: the scalar reference and its SIMD twins, paged K and V, the thread team.

mod mapped_file;

pub use mapped_file::MappedFile;
