//! Storage for hidden states by chunk, in memory or in a file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Hidden states by chunk. A chunk that was put is taken out once.
#[derive(Debug)]
pub enum ChunkStore {
    /// In memory.
    Memory(Vec<Vec<f32>>),
    /// In an unnamed file, which disappears when the run ends.
    File {
        /// The file.
        file: File,
        /// The offset of each chunk in bytes, and its number of entries.
        spans: Vec<(u64, usize)>,
    },
}

impl ChunkStore {
    /// Storage in memory for chunks of so many entries.
    pub fn in_memory(sizes: &[usize]) -> Self {
        Self::Memory(vec![Vec::new(); sizes.len()])
    }

    /// Storage in a file within `folder` for chunks of so many entries.
    pub fn in_file(folder: &Path, sizes: &[usize]) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        let mut start = 0;
        let spans = sizes
            .iter()
            .map(|&size| {
                let span = (start, size);
                start += (size * size_of::<f32>()) as u64;
                span
            })
            .collect();
        file.set_len(start)?;
        Ok(Self::File { file, spans })
    }

    /// Reads a chunk, which stays.
    pub fn get(&mut self, chunk: usize) -> io::Result<Cow<'_, [f32]>> {
        match self {
            Self::Memory(chunks) => Ok(Cow::Borrowed(&chunks[chunk])),
            Self::File { .. } => self.take(chunk).map(Cow::Owned),
        }
    }

    /// Takes a chunk out.
    pub fn take(&mut self, chunk: usize) -> io::Result<Vec<f32>> {
        match self {
            Self::Memory(chunks) => Ok(std::mem::take(&mut chunks[chunk])),
            Self::File { file, spans } => {
                let (start, size) = spans[chunk];
                let mut bytes = vec![0; size * size_of::<f32>()];
                file.seek(SeekFrom::Start(start))?;
                file.read_exact(&mut bytes)?;
                Ok(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
            }
        }
    }

    /// Puts a chunk back.
    ///
    /// # Panics
    ///
    /// If its size changed.
    pub fn put(&mut self, chunk: usize, states: Vec<f32>) -> io::Result<()> {
        match self {
            Self::Memory(chunks) => {
                chunks[chunk] = states;
                Ok(())
            }
            Self::File { file, spans } => {
                let (start, size) = spans[chunk];
                assert_eq!(states.len(), size, "the size of chunk {chunk} changed");
                file.seek(SeekFrom::Start(start))?;
                let mut bytes = Vec::with_capacity(1 << 20);
                for states in states.chunks(1 << 18) {
                    bytes.clear();
                    bytes.extend(states.iter().flat_map(|x| x.to_le_bytes()));
                    file.write_all(&bytes)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_give_back_what_was_put() {
        let sizes = [3, 0, 5];
        let chunks: Vec<Vec<f32>> =
            sizes.iter().map(|&n| (0..n).map(|i| i as f32 - 0.5).collect()).collect();
        let folder = tempfile::tempdir().unwrap();
        for mut store in
            [ChunkStore::in_memory(&sizes), ChunkStore::in_file(folder.path(), &sizes).unwrap()]
        {
            for order in [[2, 0, 1], [0, 1, 2]] {
                for i in order {
                    store.put(i, chunks[i].clone()).unwrap();
                }
                for i in order {
                    assert_eq!(store.get(i).unwrap().as_ref(), chunks[i]);
                    assert_eq!(store.take(i).unwrap(), chunks[i]);
                }
            }
        }
    }
}
