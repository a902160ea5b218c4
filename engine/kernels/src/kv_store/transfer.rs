//! Pages that go from one store to another, or from one holder to another within a store.
//!
//! Whoever sends reads under his tag. What lands keeps the tag that its bytes brought along, so no kernel reads it: the
//! page's tag is the receiver's and the bytes' is the sender's. Only [`KvStore::relabel`] makes the two agree, and it
//! wants to be told both.

use super::{HEADER_BYTES, KvStore, KvStoreError, PageRef};

/// Bytes of a tag, at the beginning of a slab's header.
const TAG_BYTES: usize = 4;

/// Why a page was not read, taken in or given another tag. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// There is no such page, or nobody can hold it.
    #[error(transparent)]
    Store(#[from] KvStoreError),
    /// The page's tag is not the one that was presented.
    #[error("page {page} is held under another tag")]
    OtherHolder {
        /// As given.
        page: u32,
    },
    /// The bytes of a layer carry another tag.
    #[error("page {page} has bytes of another life in layer {layer}")]
    OtherLife {
        /// As given.
        page: u32,
        /// Decoder block.
        layer: usize,
    },
    /// Bytes of a page of another size.
    #[error("{bytes} bytes came for a page of {page_bytes}")]
    Size {
        /// Bytes given.
        bytes: usize,
        /// Bytes of a page of this store.
        page_bytes: usize,
    },
}

/// A page whose holder is known and whose bytes may be anybody's.
#[derive(Clone, Copy, Debug)]
pub struct PageBytes<'a> {
    bytes: &'a [u8],
    layers: usize,
    slab_bytes: usize,
}

impl<'a> PageBytes<'a> {
    /// Bytes in front of the K and V of each layer: the tag, then nothing.
    pub const HEADER_BYTES: usize = HEADER_BYTES;

    /// Of another store than this crate's: `layers` slabs of `slab_bytes` one behind the other, each of them with a header
    /// that begins with the tag. `None` when there are fewer bytes than that.
    #[must_use]
    pub fn new(bytes: &'a [u8], layers: usize, slab_bytes: usize) -> Option<Self> {
        let whole = layers.checked_mul(slab_bytes)?;
        (slab_bytes >= HEADER_BYTES && bytes.len() >= whole).then_some(Self { bytes, layers, slab_bytes })
    }

    /// All of it, headers and padding included: what is sent.
    #[must_use]
    pub fn all(self) -> &'a [u8] {
        self.bytes
    }

    /// The tag that the bytes carry; `None` when the layers do not agree on one.
    #[must_use]
    pub fn tag(self) -> Option<u32> {
        let mut tags = self.headers().map(tag_of);
        let first = tags.next()?;
        tags.all(|tag| tag == first).then_some(first)
    }

    /// K and V of each layer, in order, without the headers: what a digest of the content is made of.
    pub fn contents(self) -> impl Iterator<Item = &'a [u8]> {
        self.slabs().map(|slab| &slab[HEADER_BYTES..])
    }

    fn slabs(self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks_exact(self.slab_bytes).take(self.layers)
    }

    fn headers(self) -> impl Iterator<Item = &'a [u8]> {
        self.slabs().map(|slab| &slab[..HEADER_BYTES])
    }
}

fn tag_of(header: &[u8]) -> u32 {
    header.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

impl KvStore {
    /// Bytes of K and V of one layer of a page, as [`PageBytes::contents`] gives them.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        self.layout.slab_bytes() - HEADER_BYTES
    }

    /// A page for whoever sends it: the bytes of every layer are of the holder's own life of the page.
    ///
    /// # Errors
    /// [`TransferError::OtherHolder`], [`TransferError::OtherLife`] or that there is no such page.
    pub fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        let bytes = self.held_page(page)?;
        match bytes.headers().position(|header| tag_of(header) != page.tag) {
            Some(layer) => Err(TransferError::OtherLife { page: page.page, layer }),
            None => Ok(bytes),
        }
    }

    /// A page as its holder finds it, whatever the bytes in it are: for who checks what landed.
    ///
    /// # Errors
    /// [`TransferError::OtherHolder`], or that there is no such page.
    pub fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        self.check_holder(page)?;
        let start = page.page as usize * self.page_bytes;
        let bytes = &self.memory.bytes()[start..start + self.page_bytes];
        Ok(PageBytes { bytes, layers: self.shape.layers, slab_bytes: self.layout.slab_bytes() })
    }

    /// Takes the bytes of another store's page in. They keep their tag: nobody can read the page before it is relabelled.
    ///
    /// # Errors
    /// [`TransferError::OtherHolder`], [`TransferError::Size`] or that there is no such page.
    pub fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError> {
        self.check_holder(page)?;
        if bytes.len() != self.page_bytes {
            return Err(TransferError::Size { bytes: bytes.len(), page_bytes: self.page_bytes });
        }
        let start = page.page as usize * self.page_bytes;
        self.memory.bytes_mut()[start..start + self.page_bytes].copy_from_slice(bytes);
        Ok(())
    }

    /// The page's next holder is whoever has `tag`: it becomes the page's, and that of the bytes of every layer, which
    /// carry `carried` now. From then on nothing can be done under the old one.
    ///
    /// # Errors
    /// [`TransferError`]: [`TransferError::OtherLife`] when a layer carries another tag than `carried`.
    pub fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        let bytes = self.held_page(page)?;
        if tag == 0 {
            return Err(KvStoreError::NobodysTag { page: page.page }.into());
        }
        if let Some(layer) = bytes.headers().position(|header| tag_of(header) != carried) {
            return Err(TransferError::OtherLife { page: page.page, layer });
        }
        let (start, slab_bytes) = (page.page as usize * self.page_bytes, self.layout.slab_bytes());
        for layer in 0..self.shape.layers {
            let header = start + layer * slab_bytes;
            self.memory.bytes_mut()[header..header + TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        }
        self.tags[page.page as usize] = tag;
        Ok(())
    }

    fn check_holder(&self, page: PageRef) -> Result<(), TransferError> {
        let PageRef { page, tag } = page;
        match self.tags.get(page as usize) {
            None => Err(KvStoreError::PageOutside { page, pages: self.shape.pages }.into()),
            Some(held) if tag == 0 || *held != tag => Err(TransferError::OtherHolder { page }),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SHAPE, fill};
    use super::*;
    use crate::kv_store::KvKind;

    const SENT: PageRef = PageRef { page: 2, tag: 7 };
    const KEPT: PageRef = PageRef { page: 1, tag: 9 };

    /// A store with a page that was written in both layers, and one in which a page is kept for it.
    fn stores(kind: KvKind) -> (KvStore, KvStore) {
        let [mut from, mut to] = [(); 2].map(|()| KvStore::with_kind(SHAPE, kind).unwrap());
        from.assign(SENT).unwrap();
        assert!(fill(&mut from, 0, SENT, true) && fill(&mut from, 1, SENT, true));
        to.assign(KEPT).unwrap();
        (from, to)
    }

    #[test]
    fn what_landed_is_unreadable_until_its_holder_and_its_bytes_agree() {
        for kind in [KvKind::Bf16, KvKind::F32, KvKind::Int8] {
            let (from, mut to) = stores(kind);
            let sent = from.read_page(SENT).unwrap();
            to.land(KEPT, sent.all()).unwrap();
            for reader in [KEPT, PageRef { tag: 7, ..KEPT }] {
                assert!((0..2).all(|layer| to.slab(layer, reader).is_none()), "{reader:?}");
            }
            let landed = to.held_page(KEPT).unwrap();
            assert_eq!(landed.tag(), Some(7));
            assert!(landed.contents().eq(sent.contents()) && landed.contents().count() == 2);
            assert!(landed.contents().all(|content| content.len() == to.content_bytes()));

            to.relabel(KEPT, 7, 11).unwrap();
            let mine = PageRef { tag: 11, ..KEPT };
            for layer in 0..2 {
                let (there, here) = (from.slab(layer, SENT).unwrap(), to.slab(layer, mine).unwrap());
                assert!(
                    (0..3).all(|head| there.keys(head) == here.keys(head) && there.values(head) == here.values(head))
                );
                assert!(to.slab(layer, KEPT).is_none() && to.slab(layer, PageRef { tag: 7, ..KEPT }).is_none());
            }
            assert_eq!(to.read_page(KEPT).unwrap_err(), TransferError::OtherHolder { page: 1 });
            assert!(fill(&mut to, 1, mine, false), "its holder goes on writing to it");
        }
    }

    #[test]
    fn only_its_holder_sends_takes_in_and_relabels_a_page() {
        let (from, mut to) = stores(KvKind::Bf16);
        let bytes = from.read_page(SENT).unwrap().all().to_vec();
        let before = to.held_page(KEPT).unwrap().all().to_vec();
        assert!(before != bytes);
        for stranger in [PageRef { tag: 8, ..KEPT }, PageRef { tag: 0, ..KEPT }, PageRef { page: 0, tag: 0 }] {
            let refused = TransferError::OtherHolder { page: stranger.page };
            assert_eq!(to.held_page(stranger).unwrap_err(), refused);
            assert_eq!(to.read_page(stranger).unwrap_err(), refused);
            assert_eq!(to.land(stranger, &bytes), Err(refused));
            assert_eq!(to.relabel(stranger, 7, 11), Err(refused));
        }
        let outside = PageRef { page: 4, tag: 9 };
        let refused = TransferError::Store(KvStoreError::PageOutside { page: 4, pages: 4 });
        assert_eq!(to.held_page(outside).unwrap_err(), refused);
        assert_eq!(to.land(outside, &bytes), Err(refused));
        assert_eq!(to.relabel(outside, 7, 11), Err(refused));
        assert!(to.held_page(KEPT).unwrap().all() == before, "nothing landed");
    }

    #[test]
    fn bytes_of_another_life_are_neither_sent_nor_adopted() {
        let (mut from, mut to) = stores(KvKind::Bf16);
        // A late writer of another life was here, in the second layer.
        let second = SENT.page as usize * from.page_bytes + from.layout.slab_bytes();
        from.memory.bytes_mut()[second] = 8;
        assert_eq!(from.read_page(SENT).unwrap_err(), TransferError::OtherLife { page: 2, layer: 1 });
        let damaged = from.held_page(SENT).unwrap();
        assert_eq!(damaged.tag(), None);
        to.land(KEPT, damaged.all()).unwrap();
        assert_eq!(to.relabel(KEPT, 7, 11), Err(TransferError::OtherLife { page: 1, layer: 1 }));
        assert_eq!(to.relabel(KEPT, 8, 11), Err(TransferError::OtherLife { page: 1, layer: 0 }));
        assert_eq!(to.held_page(KEPT).unwrap().tag(), None, "nothing was relabelled");
        assert_eq!(to.slab(0, PageRef { tag: 11, ..KEPT }).map(|_| ()), None);
    }

    #[test]
    fn a_page_changes_hands_within_a_store_without_moving() {
        let (mut store, _) = stores(KvKind::Bf16);
        assert_eq!(store.relabel(SENT, 7, 0), Err(KvStoreError::NobodysTag { page: 2 }.into()));
        store.relabel(SENT, 7, 12).unwrap();
        assert!(store.slab(0, SENT).is_none());
        assert!(store.slab(0, PageRef { tag: 12, ..SENT }).is_some());
        assert_eq!(store.relabel(SENT, 7, 13), Err(TransferError::OtherHolder { page: 2 }), "its time is over");
    }

    #[test]
    fn pages_of_another_store_have_whole_slabs() {
        let mut bytes = vec![1; 2 * 80 + 5];
        for layer in 0..2 {
            bytes[layer * 80..layer * 80 + TAG_BYTES].copy_from_slice(&7u32.to_le_bytes());
        }
        let page = PageBytes::new(&bytes, 2, 80).unwrap();
        assert_eq!((page.tag(), page.contents().map(<[u8]>::len).collect::<Vec<_>>()), (Some(7), vec![16, 16]));
        assert!(PageBytes::new(&bytes, 3, 80).is_none() && PageBytes::new(&bytes, 1, HEADER_BYTES - 1).is_none());
        assert!(PageBytes::new(&bytes, usize::MAX, 80).is_none());
    }

    #[test]
    fn pages_of_another_size_are_not_taken_in() {
        let (_, mut to) = stores(KvKind::Bf16);
        let page_bytes = to.page_bytes;
        for bytes in [0, page_bytes - 1, page_bytes + 1] {
            let refused = TransferError::Size { bytes, page_bytes };
            assert_eq!(to.land(KEPT, &vec![1; bytes]), Err(refused));
        }
        to.scrub(KEPT.page).unwrap();
        assert!(to.is_scrubbed(KEPT.page));
    }
}
