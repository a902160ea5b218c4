//! The memory of the paged K and V cache, and the tags that say whose a page is.
//!
//! Page-major: a page's slabs of all layers lie together, so that scrubbing it is one stretch. A slab is
//!
//! * a header with the in-band tag: it travels with the bytes, so whoever writes a slab brings the tag along;
//! * for each kv head K as `[head_dim][16]` (the 16 tokens of a page are the lanes of a vector), then V as
//!   `[16][head_dim]`: side by side, because they are read together and memory likes long stretches. Values are stored
//!   as the store's [`KvKind`] says; behind `i8` ones lie 16 f32, the scale of each token.
//!
//! Who may hold which page is decided elsewhere; here it is only compared, at the moment of the read and the write.
//!
//! A page that is handed out holds poison: values that are not numbers, whatever the kind. Kernels never look beyond what a
//! sequence has written; should one do so, its answer is not a number and is refused, instead of being plausible.

mod kind;
mod slab;
mod transfer;

use std::marker::PhantomData;

use crate::memory::AnonymousMemory;
pub use kind::KvKind;
use slab::SlabLayout;
pub(crate) use slab::{Slab, SlabMut};
pub use transfer::{PageBytes, TransferError};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 16;
/// Bytes in front of a slab's K: the in-band tag, and the rest of a cache line.
const HEADER_BYTES: usize = 64;
/// A page begins at a page of the system's, so that pages not in use take no memory.
const PAGE_ALIGNMENT: usize = 4_096;
/// What a page is filled with before it is handed out: as bf16 and as f32 (which are also the scales of `i8`) not a number.
const POISON: u8 = 0xff;

/// A capability as it stands in a block table: which page, and the tag that the reader was given for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Place in the store.
    pub page: u32,
    /// Compared with the store's tag at every use; 0 is nobody's and never fits.
    pub tag: u32,
}

/// Dimensions of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder blocks.
    pub layers: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values of one head; a multiple of 16.
    pub head_dim: usize,
    /// Pages of [`PAGE_TOKENS`] tokens.
    pub pages: usize,
}

/// Why the store refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvStoreError {
    /// A dimension is 0, a head is not a multiple of 16 values, or page numbers do not fit 32 bits.
    #[error("a store of {layers} layers, {kv_heads} heads of {head_dim} and {pages} pages cannot be")]
    Shape {
        /// As asked for.
        layers: usize,
        /// As asked for.
        kv_heads: usize,
        /// As asked for.
        head_dim: usize,
        /// As asked for.
        pages: usize,
    },
    /// The system refused the memory, or the size overflows.
    #[error("memory for {pages} pages of {page_bytes} bytes is not to be had")]
    Memory {
        /// Pages asked for.
        pages: usize,
        /// Bytes of one.
        page_bytes: usize,
    },
    /// There is no such page.
    #[error("page {page} is outside the store of {pages} pages")]
    PageOutside {
        /// As given.
        page: u32,
        /// Pages that there are.
        pages: usize,
    },
    /// Tag 0 was to be assigned.
    #[error("page {page} cannot be assigned to nobody")]
    NobodysTag {
        /// As given.
        page: u32,
    },
    /// The page has a tag already: it was not scrubbed since its last owner.
    #[error("page {page} is still assigned")]
    Assigned {
        /// As given.
        page: u32,
    },
}

/// K and V of all sequences, in pages.
pub struct KvStore {
    shape: KvShape,
    kind: KvKind,
    layout: SlabLayout,
    page_bytes: usize,
    memory: AnonymousMemory,
    /// The tag of each page; 0 while it is nobody's.
    tags: Vec<u32>,
    /// The pages whose bytes are what [`poison`] makes of them.
    poisoned: Vec<bool>,
    /// Pages below this have been assigned since their memory was given back.
    touched: usize,
    /// Memory is never given back.
    preallocated: bool,
}

/// The slabs of a store, and the bytes of its pages.
fn sizes(shape: KvShape, kind: KvKind) -> Result<(SlabLayout, usize), KvStoreError> {
    let KvShape { layers, kv_heads, head_dim, pages } = shape;
    let impossible = KvStoreError::Shape { layers, kv_heads, head_dim, pages };
    if layers == 0 || kv_heads == 0 || head_dim == 0 || pages == 0 || !head_dim.is_multiple_of(16) {
        return Err(impossible);
    }
    if u32::try_from(pages).is_err() {
        return Err(impossible);
    }
    let sizes = || {
        let layout = SlabLayout::new(kind, kv_heads, head_dim)?;
        let page_bytes = layout.slab_bytes().checked_mul(layers)?.checked_next_multiple_of(PAGE_ALIGNMENT)?;
        Some((layout, page_bytes))
    };
    sizes().ok_or(impossible)
}

/// Fills a page's bytes with [`POISON`], padding included. Its layers are in no life: their tag is nobody's.
fn poison(page: &mut [u8], layout: &SlabLayout, layers: usize) {
    page.fill(POISON);
    for slab in page.chunks_exact_mut(layout.slab_bytes()).take(layers) {
        slab[..HEADER_BYTES].fill(0);
    }
}

impl KvStore {
    /// An empty store of the usual kind. Memory is taken when a page is first written.
    ///
    /// # Errors
    /// [`KvStoreError::Shape`] or [`KvStoreError::Memory`].
    pub fn new(shape: KvShape) -> Result<Self, KvStoreError> {
        Self::with_kind(shape, KvKind::default())
    }

    /// An empty store whose values are of `kind`.
    ///
    /// # Errors
    /// [`KvStoreError::Shape`] or [`KvStoreError::Memory`].
    pub fn with_kind(shape: KvShape, kind: KvKind) -> Result<Self, KvStoreError> {
        let (pages, (layout, page_bytes)) = (shape.pages, sizes(shape, kind)?);
        let memory = page_bytes
            .checked_mul(pages)
            .and_then(AnonymousMemory::new)
            .ok_or(KvStoreError::Memory { pages, page_bytes })?;
        Ok(Self {
            shape,
            kind,
            layout,
            page_bytes,
            memory,
            tags: vec![0; pages],
            poisoned: vec![false; pages],
            touched: 0,
            preallocated: false,
        })
    }

    /// Takes the memory of all pages at once, with so many threads, and keeps it: no page is touched for the first time while
    /// somebody waits for it.
    pub fn preallocate(&mut self, threads: usize) {
        let (layout, layers, page_bytes) = (self.layout, self.shape.layers, self.page_bytes);
        let each = self.shape.pages.div_ceil(threads.max(1));
        let parts = self.memory.bytes_mut().chunks_mut(each * page_bytes);
        let states = self.tags.chunks(each).zip(self.poisoned.chunks_mut(each));
        std::thread::scope(|scope| {
            for (bytes, (tags, poisoned)) in parts.zip(states) {
                scope.spawn(move || {
                    let pages = bytes.chunks_exact_mut(page_bytes).zip(tags).zip(poisoned);
                    for ((page, _), poisoned) in pages.filter(|((_, tag), poisoned)| **tag == 0 && !**poisoned) {
                        poison(page, &layout, layers);
                        *poisoned = true;
                    }
                });
            }
        });
        (self.touched, self.preallocated) = (self.shape.pages, true);
    }

    /// Bytes of a page of such a store, without making one.
    ///
    /// # Errors
    /// [`KvStoreError::Shape`].
    pub fn page_bytes_of(shape: KvShape, kind: KvKind) -> Result<usize, KvStoreError> {
        Ok(sizes(shape, kind)?.1)
    }

    /// As given to [`KvStore::new`].
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// How its values are stored.
    #[must_use]
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    /// Bytes of a page over all layers, padding included.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Gives a page to the holder of a tag.
    ///
    /// # Errors
    /// [`KvStoreError`] when there is no such page, the tag is 0, or the page is assigned.
    pub fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        let PageRef { page, tag } = page;
        let pages = self.shape.pages;
        let held = self.tags.get_mut(page as usize).ok_or(KvStoreError::PageOutside { page, pages })?;
        if tag == 0 {
            return Err(KvStoreError::NobodysTag { page });
        }
        if *held != 0 {
            return Err(KvStoreError::Assigned { page });
        }
        *held = tag;
        // Memory that the system has just given is zeros.
        if !std::mem::take(&mut self.poisoned[page as usize]) {
            self.poison(page);
        }
        self.touched = self.touched.max(page as usize + 1);
        Ok(())
    }

    /// Takes a page back: its bytes are overwritten with poison, padding included, and its tag becomes nobody's. A page that is
    /// nobody's was overwritten already, or never written: nothing is written without a tag.
    ///
    /// # Errors
    /// [`KvStoreError::PageOutside`].
    pub fn scrub(&mut self, page: u32) -> Result<(), KvStoreError> {
        let pages = self.shape.pages;
        if page as usize >= pages {
            return Err(KvStoreError::PageOutside { page, pages });
        }
        if self.tags[page as usize] == 0 {
            return Ok(());
        }
        // Overwritten first: at no moment is there a page with content and without an owner.
        self.poison(page);
        self.poisoned[page as usize] = true;
        self.tags[page as usize] = 0;
        Ok(())
    }

    /// As [`poison`], of a page that exists.
    fn poison(&mut self, page: u32) {
        let start = page as usize * self.page_bytes;
        poison(&mut self.memory.bytes_mut()[start..start + self.page_bytes], &self.layout, self.shape.layers);
    }

    /// Gives the memory of pages that are nobody's back to the system, but for the first `keep` pages.
    pub fn give_back(&mut self, keep: usize) {
        if self.preallocated {
            return;
        }
        let mut first = keep;
        while first < self.touched {
            let free = self.tags[first..self.touched].iter().take_while(|tag| **tag == 0).count();
            if free > 0 {
                let bytes = first * self.page_bytes..(first + free) * self.page_bytes;
                self.memory.bytes_mut()[bytes.clone()].fill(0);
                self.memory.give_back(bytes);
                self.poisoned[first..first + free].fill(false);
            }
            // The page after a run of free ones is somebody's.
            first += free + 1;
        }
        let assigned = self.tags[..self.touched].iter().rposition(|tag| *tag != 0).map_or(0, |last| last + 1);
        self.touched = self.touched.min(assigned.max(keep));
    }

    /// Whether a page is nobody's and holds nothing of anybody. Reads all its bytes: for tests. False for pages outside.
    #[must_use]
    pub fn is_scrubbed(&self, page: u32) -> bool {
        self.tags.get(page as usize).is_some_and(|tag| *tag == 0) && {
            let start = page as usize * self.page_bytes;
            let bytes = &self.memory.bytes()[start..start + self.page_bytes];
            let wanted = if self.poisoned[page as usize] { POISON } else { 0 };
            let slab_bytes = self.layout.slab_bytes();
            let header = |at: usize| at < self.shape.layers * slab_bytes && at % slab_bytes < HEADER_BYTES;
            bytes.iter().enumerate().all(|(at, byte)| *byte == if header(at) { 0 } else { wanted })
        }
    }

    /// A layer's slab of a page, if the page is the capability holder's: the label check of a read.
    #[inline]
    pub(crate) fn slab(&self, layer: usize, page: PageRef) -> Option<Slab<'_>> {
        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {
            return None;
        }
        let slab_bytes = self.layout.slab_bytes();
        let start = page.page as usize * self.page_bytes + layer * slab_bytes;
        let slab = Slab::new(&self.memory.bytes()[start..start + slab_bytes], &self.layout);
        (slab.tag() == page.tag).then_some(slab)
    }

    /// Stands where no slab is yet.
    #[inline]
    pub(crate) fn no_slab(&self) -> Slab<'_> {
        Slab::new(&[], &self.layout)
    }

    /// For writing from several threads.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        KvWriter {
            layout: self.layout,
            page_bytes: self.page_bytes,
            tags: &self.tags,
            start: self.memory.bytes_mut().as_mut_ptr(),
            store: PhantomData,
        }
    }
}

impl std::fmt::Debug for KvStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStore").field("shape", &self.shape).field("page_bytes", &self.page_bytes).finish()
    }
}

/// Writes to pages from several threads, each to its own.
pub(crate) struct KvWriter<'a> {
    layout: SlabLayout,
    page_bytes: usize,
    tags: &'a [u32],
    start: *mut u8,
    store: PhantomData<&'a mut KvStore>,
}

// SAFETY: it stands for a `&mut` of plain bytes, whose pages go to different threads.
unsafe impl Sync for KvWriter<'_> {}

impl KvWriter<'_> {
    /// A layer's slab of a page, if the page is the capability holder's: the label check of a write. The first token
    /// of a page stamps the in-band tag; all others find it there.
    ///
    /// # Safety
    /// While the result is in use, no other thread has one of the same page.
    pub(crate) unsafe fn slab(&self, layer: usize, page: PageRef, first_token: bool) -> Option<SlabMut<'_>> {
        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {
            return None;
        }
        let slab_bytes = self.layout.slab_bytes();
        let start = page.page as usize * self.page_bytes + layer * slab_bytes;
        // SAFETY: the page exists (it has a tag) and a page has a slab for each layer of the store, which the caller
        // has compared with the model's; no other thread writes the page, by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.add(start), slab_bytes) };
        let tag = page.tag.to_le_bytes();
        if first_token {
            bytes[..4].copy_from_slice(&tag);
        } else if bytes[..4] != tag {
            return None;
        }
        Some(SlabMut::new(bytes, self.layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;

    pub(super) const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 3, head_dim: 32, pages: 4 };
    const PAGE: PageRef = PageRef { page: 2, tag: 7 };

    pub(super) fn fill(store: &mut KvStore, layer: usize, page: PageRef, first_token: bool) -> bool {
        let writer = store.writer();
        // SAFETY: there is one thread.
        let Some(mut slab) = (unsafe { writer.slab(layer, page, first_token) }) else { return false };
        for kv_head in 0..3 {
            for slot in 0..PAGE_TOKENS {
                // No byte of it is zero.
                let row = [f32::from_bits(0x3f01_0101 + (slot << 16) as u32); 32];
                slab.append(Scalar, kv_head, slot, &row, &row);
            }
        }
        true
    }

    #[test]
    fn memory_given_back_was_nobodys_and_reads_as_zeros() {
        let mut store = KvStore::new(SHAPE).unwrap();
        let other = PageRef { page: 0, tag: 9 };
        for page in [PAGE, other] {
            store.assign(page).unwrap();
            assert!(fill(&mut store, 0, page, true));
        }
        store.scrub(0).unwrap();
        store.give_back(0);
        assert!(store.is_scrubbed(0));
        let slab = store.slab(0, PAGE).unwrap();
        assert!((0..3).all(|head| slab.keys(head).iter().all(|byte| *byte != 0)), "an owned page lost its bytes");
        store.assign(other).unwrap();
        assert!(fill(&mut store, 0, other, true));
        assert!(store.slab(0, other).is_some());
    }

    #[test]
    fn memory_taken_at_once_is_nobodys_and_stays() {
        for threads in [0, 1, 3, 64] {
            let mut store = KvStore::new(SHAPE).unwrap();
            store.assign(PAGE).unwrap();
            assert!(fill(&mut store, 0, PAGE, true));
            store.preallocate(threads);
            let slab = store.slab(0, PAGE).unwrap();
            assert!((0..3).all(|head| slab.keys(head).iter().all(|byte| *byte != 0)), "an owned page lost its bytes");
            store.scrub(PAGE.page).unwrap();
            for page in 0..SHAPE.pages as u32 {
                assert!(store.is_scrubbed(page) && store.poisoned[page as usize]);
            }
            store.give_back(0);
            assert_eq!(
                (store.touched, store.poisoned.iter().all(|poisoned| *poisoned)),
                (SHAPE.pages, true),
                "it is kept"
            );
            store.assign(PAGE).unwrap();
            assert!(fill(&mut store, 0, PAGE, true) && store.slab(0, PAGE).is_some());
        }
    }

    #[test]
    fn a_slab_is_written_to_its_last_byte_and_scrubbed_to_it() {
        let mut store = KvStore::new(SHAPE).unwrap();
        store.assign(PAGE).unwrap();
        store.assign(PageRef { page: 1, tag: 9 }).unwrap();
        store.assign(PageRef { page: 3, tag: 9 }).unwrap();
        assert!(fill(&mut store, 0, PAGE, true) && fill(&mut store, 1, PAGE, true));
        let slab = store.slab(1, PAGE).unwrap();
        assert!((0..3).all(|head| slab.keys(head).iter().chain(slab.values(head)).all(|byte| *byte != 0)));
        // The neighbours saw nothing of it.
        for page in [1, 3] {
            let start = page * store.page_bytes();
            let mut untouched = vec![POISON; store.page_bytes()];
            untouched.chunks_exact_mut(store.layout.slab_bytes()).take(2).for_each(|slab| slab[..HEADER_BYTES].fill(0));
            assert!(store.memory.bytes()[start..start + store.page_bytes()] == untouched);
        }
        // Padding included.
        let end = 3 * store.page_bytes();
        store.memory.bytes_mut()[end - 1] = 1;
        assert!(!store.is_scrubbed(2));
        store.scrub(2).unwrap();
        assert!(store.is_scrubbed(2));
        assert!(store.slab(0, PAGE).is_none());
    }

    #[test]
    fn only_the_holder_reads_and_writes() {
        let mut store = KvStore::new(SHAPE).unwrap();
        assert!(!fill(&mut store, 0, PAGE, true), "nobody's page");
        store.assign(PAGE).unwrap();
        assert!(store.slab(0, PAGE).is_none(), "not written yet: no tag in the slab");
        assert!(!fill(&mut store, 0, PAGE, false), "a page begins with its first token");
        assert!(fill(&mut store, 0, PAGE, true));
        assert!(store.slab(0, PAGE).is_some());
        assert!(store.slab(1, PAGE).is_none(), "the other layer is not written");
        for page in [PageRef { tag: 8, ..PAGE }, PageRef { tag: 0, ..PAGE }, PageRef { page: 4, ..PAGE }] {
            assert!(store.slab(0, page).is_none());
            assert!(!fill(&mut store, 0, page, true) && !fill(&mut store, 0, page, false));
        }
        // A stray write brings its own tag along: the ledger's tag alone does not make the page readable.
        store.scrub(2).unwrap();
        store.assign(PageRef { tag: 8, ..PAGE }).unwrap();
        let start = 2 * store.page_bytes();
        store.memory.bytes_mut()[start] = 7;
        assert!(store.slab(0, PageRef { tag: 8, ..PAGE }).is_none());
        assert!(store.slab(0, PAGE).is_none());
    }

    #[test]
    fn a_page_that_was_nobody_s_is_not_touched_for_that() {
        let mut store = KvStore::new(SHAPE).unwrap();
        store.scrub(2).unwrap();
        assert!(!store.poisoned[2] && store.is_scrubbed(2), "its memory was never asked for");
        store.assign(PAGE).unwrap();
        assert!(fill(&mut store, 0, PAGE, true));
        store.scrub(2).unwrap();
        store.scrub(2).unwrap();
        assert!(store.poisoned[2] && store.is_scrubbed(2));
    }

    #[test]
    fn assignments_are_checked() {
        let mut store = KvStore::new(SHAPE).unwrap();
        assert_eq!(store.assign(PageRef { page: 4, tag: 1 }), Err(KvStoreError::PageOutside { page: 4, pages: 4 }));
        assert_eq!(store.assign(PageRef { page: 0, tag: 0 }), Err(KvStoreError::NobodysTag { page: 0 }));
        assert_eq!(store.assign(PAGE), Ok(()));
        assert_eq!(store.assign(PageRef { tag: 8, ..PAGE }), Err(KvStoreError::Assigned { page: 2 }));
        assert_eq!(store.scrub(4), Err(KvStoreError::PageOutside { page: 4, pages: 4 }));
        assert!(!store.is_scrubbed(4) && !store.is_scrubbed(2));
    }

    #[test]
    fn impossible_stores_are_refused() {
        for shape in [
            KvShape { layers: 0, ..SHAPE },
            KvShape { kv_heads: 0, ..SHAPE },
            KvShape { head_dim: 0, ..SHAPE },
            KvShape { head_dim: 24, ..SHAPE },
            KvShape { pages: 0, ..SHAPE },
            KvShape { layers: usize::MAX, ..SHAPE },
            KvShape { pages: 1 << 40, ..SHAPE },
        ] {
            assert!(matches!(KvStore::new(shape), Err(KvStoreError::Shape { .. })), "{shape:?}");
        }
        let huge = KvShape { layers: 1 << 20, kv_heads: 1 << 10, head_dim: 1 << 10, pages: u32::MAX as usize };
        assert!(matches!(KvStore::new(huge), Err(KvStoreError::Memory { .. })));
    }
}
