//! CPU kernels and the memory they work on: the scalar reference and its SIMD twins, paged K and V, the thread team.
//!
//! Every kernel is written once over 16 lanes and compiled for each family of instructions; all families, any number
//! of threads and any way of putting tokens together into runs give the same bits.

mod activations;
mod attention;
mod ceiling;
pub mod elementary;
mod family;
mod kv_store;
pub mod logits;
mod mapped_file;
mod matrix;
mod memory;
mod norm;
mod processors;
mod product;
mod read_set;
mod rope;
mod shared_slice;
mod simd;
mod span;
mod team;

pub use activations::{Activations, BLOCK as ACTIVATION_BLOCK};
pub use attention::{AttentionPlan, attention};
pub use ceiling::{Multiplication, ReadCeiling, ReadPattern, multiply};
pub use family::KernelFamily;
pub use kv_store::{KvKind, KvShape, KvStore, KvStoreError, PAGE_TOKENS, PageBytes, PageRef, TransferError};
pub use mapped_file::{MappedFile, tell_of_cut_files};
pub use matrix::{Matrix, MatrixKind, MatrixSource, PACKED_LAYOUT, PackError, PackedMatrices, Packing};
pub use norm::{quantise, rms_norm, rms_norm_add};
pub use product::{Activation, product, product_add, product_swiglu};
pub use read_set::{ReadSetRule, ReadSums};
pub use rope::{HEAD_DIM_MAX, HeadNorms, HeadShape, HeadTransform, Rope, RopePairs, rotate_and_append};
pub use span::{PageFault, PageFaults, Span};
pub use team::Team;
