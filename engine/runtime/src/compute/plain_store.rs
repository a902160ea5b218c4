//! KV pages as [`engine_kernels::KvStore`] has them, without kernels: for models that tests put in the real one's place.
//!
//! What is written to a slot is so many bytes for each layer. The checks of a page's tag are the real store's; they can be
//! switched off, which they cannot there.

use engine_kernels::{KvStoreError, PAGE_TOKENS, PageBytes, PageFault, PageRef, TransferError};

/// What a scrubbed page is full of, but for the headers of its slabs.
const POISON: u8 = 0xff;

/// Pages of slabs, one for each layer: a header that begins with the tag, then 16 slots.
#[derive(Debug, PartialEq, Eq)]
pub struct PlainStore {
    layers: usize,
    slot_bytes: usize,
    bytes: Vec<u8>,
    /// 0 while a page is nobody's.
    tags: Vec<u32>,
    is_checked: bool,
}

impl PlainStore {
    /// So many pages, all nobody's; `slot_bytes` of one token in one layer.
    #[must_use]
    pub fn new(pages: usize, layers: usize, slot_bytes: usize) -> Self {
        let mut store = Self { layers, slot_bytes, bytes: Vec::new(), tags: vec![0; pages], is_checked: true };
        store.bytes = vec![0; pages * store.page_bytes()];
        (0..pages as u32).for_each(|page| store.poison(page));
        store
    }

    /// Nobody compares tags from now on.
    pub fn believe_block_tables(&mut self) {
        self.is_checked = false;
    }

    /// Tags are compared.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Bytes of one layer without its header.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        PAGE_TOKENS * self.slot_bytes
    }

    fn slab_bytes(&self) -> usize {
        PageBytes::HEADER_BYTES + self.content_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.layers * self.slab_bytes()
    }

    /// All bytes of a page; none of one that there is not.
    #[must_use]
    pub fn page(&self, page: u32) -> &[u8] {
        self.bytes.get(page as usize * self.page_bytes()..).map_or(&[], |bytes| &bytes[..self.page_bytes()])
    }

    /// As [`PlainStore::page`], to be damaged.
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        let page_bytes = self.page_bytes();
        self.bytes.get_mut(page as usize * page_bytes..).map_or(&mut [], |bytes| &mut bytes[..page_bytes])
    }

    /// What lies in a slot, whoever wrote it; nothing where there is no such place.
    #[must_use]
    pub fn slot(&self, page: u32, layer: usize, slot: usize) -> &[u8] {
        let at = layer * self.slab_bytes() + PageBytes::HEADER_BYTES + slot * self.slot_bytes;
        self.page(page).get(at..at + self.slot_bytes).unwrap_or_default()
    }

    /// Nobody has a page, and none holds anything.
    #[must_use]
    pub fn is_scrubbed(&self) -> bool {
        *self == Self::new(self.tags.len(), self.layers, self.slot_bytes)
    }

    /// Writes one token's content, a piece for each layer. The label check of a write: the first slot stamps the tag, all
    /// others find it there.
    ///
    /// # Errors
    /// [`PageFault`]; nothing was written.
    pub fn append<'a>(
        &mut self,
        page: PageRef,
        slot: usize,
        content: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), PageFault> {
        if slot == 0 { self.check_holder(page) } else { self.check(page) }?;
        let (slab_bytes, slot_bytes) = (self.slab_bytes(), self.slot_bytes);
        for (layer, slab) in self.page_mut(page.page).chunks_exact_mut(slab_bytes).enumerate() {
            if slot == 0 {
                slab[..4].copy_from_slice(&page.tag.to_le_bytes());
            }
            slab[PageBytes::HEADER_BYTES + slot * slot_bytes..][..slot_bytes].copy_from_slice(content(layer));
        }
        Ok(())
    }

    /// The label check of a read.
    ///
    /// # Errors
    /// [`PageFault`].
    pub fn check(&self, page: PageRef) -> Result<(), PageFault> {
        self.check_holder(page)?;
        let other = (0..self.layers).find(|layer| self.is_checked && self.tag_of_layer(page.page, *layer) != page.tag);
        other.map_or(Ok(()), |layer| Err(PageFault { layer: layer as u32, page: page.page }))
    }

    fn check_holder(&self, page: PageRef) -> Result<(), PageFault> {
        self.held(page).map_err(|_| PageFault { layer: 0, page: page.page })
    }

    /// The tag that the bytes of all layers carry; 0 when they do not agree.
    #[must_use]
    pub fn carried(&self, page: u32) -> u32 {
        let tag = self.tag_of_layer(page, 0);
        if (1..self.layers).all(|layer| self.tag_of_layer(page, layer) == tag) { tag } else { 0 }
    }

    fn tag_of_layer(&self, page: u32, layer: usize) -> u32 {
        let header = self.page(page).get(layer * self.slab_bytes()..).and_then(<[u8]>::first_chunk);
        header.map_or(0, |tag| u32::from_le_bytes(*tag))
    }

    fn held(&self, page: PageRef) -> Result<(), TransferError> {
        let PageRef { page, tag } = page;
        match self.tags.get(page as usize) {
            Some(held) if !self.is_checked || tag != 0 && *held == tag => Ok(()),
            Some(_) => Err(TransferError::OtherHolder { page }),
            None => Err(KvStoreError::PageOutside { page, pages: self.tags.len() }.into()),
        }
    }

    fn poison(&mut self, page: u32) {
        let slab_bytes = self.slab_bytes();
        for slab in self.page_mut(page).chunks_exact_mut(slab_bytes) {
            slab.fill(POISON);
            slab[..PageBytes::HEADER_BYTES].fill(0);
        }
    }

    /// As the real store's.
    ///
    /// # Errors
    /// [`KvStoreError`]; nothing has changed then.
    pub fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        let PageRef { page, tag } = page;
        let pages = self.tags.len();
        match self.tags.get_mut(page as usize) {
            Some(_) if tag == 0 => Err(KvStoreError::NobodysTag { page }),
            Some(held) if *held == 0 || !self.is_checked => {
                *held = tag;
                Ok(())
            }
            Some(_) => Err(KvStoreError::Assigned { page }),
            None => Err(KvStoreError::PageOutside { page, pages }),
        }
    }

    /// As the real store's.
    ///
    /// # Errors
    /// [`KvStoreError`].
    pub fn scrub(&mut self, page: u32) -> Result<(), KvStoreError> {
        self.poison(page);
        let pages = self.tags.len();
        *self.tags.get_mut(page as usize).ok_or(KvStoreError::PageOutside { page, pages })? = 0;
        Ok(())
    }

    /// As the real store's.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        let bytes = self.held_page(page)?;
        self.check(page).map_err(|fault| TransferError::OtherLife { page: page.page, layer: fault.layer as usize })?;
        Ok(bytes)
    }

    /// As the real store's.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        self.held(page)?;
        let outside = KvStoreError::PageOutside { page: page.page, pages: self.tags.len() };
        PageBytes::new(self.page(page.page), self.layers, self.slab_bytes()).ok_or(outside.into())
    }

    /// As the real store's.
    ///
    /// # Errors
    /// [`TransferError`]; nothing has changed then.
    pub fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError> {
        self.held(page)?;
        self.overwrite(page.page, bytes)
    }

    /// Puts bytes into a page, whoever has it.
    ///
    /// # Errors
    /// [`TransferError::Size`].
    pub fn overwrite(&mut self, page: u32, bytes: &[u8]) -> Result<(), TransferError> {
        let page_bytes = self.page_bytes();
        if bytes.len() != page_bytes {
            return Err(TransferError::Size { bytes: bytes.len(), page_bytes });
        }
        self.page_mut(page).copy_from_slice(bytes);
        Ok(())
    }

    /// As the real store's.
    ///
    /// # Errors
    /// [`TransferError`]; nothing has changed then.
    pub fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        self.held(page)?;
        let other = (0..self.layers).find(|layer| self.is_checked && self.tag_of_layer(page.page, *layer) != carried);
        if let Some(layer) = other {
            return Err(TransferError::OtherLife { page: page.page, layer });
        }
        let slab_bytes = self.slab_bytes();
        for slab in self.page_mut(page.page).chunks_exact_mut(slab_bytes) {
            slab[..4].copy_from_slice(&tag.to_le_bytes());
        }
        self.tags[page.page as usize] = tag;
        Ok(())
    }
}
