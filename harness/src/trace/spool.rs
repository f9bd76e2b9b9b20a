//! The values of a walk on disk: a file of bytes and a document that says what lies where. Whoever writes or reads
//! holds one tensor at a time.

use super::graph::{GraphInfo, Place};
use runtime::GraphRequest;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A spool that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The document is none, or says what cannot be.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// One graph of a case, and what it gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// What it was asked for.
    pub request: GraphRequest,
    /// F32 `[rows, vocab]`.
    pub logits: Place,
    /// K and V of each layer at the graph's positions, F32 `[positions, kv_heads * head_dim]`.
    pub kv: Vec<[Place; 2]>,
    /// What its canvas was conditioned on, F32 `[canvas, vocab]`.
    pub condition: Option<Place>,
    /// The experts that it was given, layer by layer, `[tokens, used]`.
    pub experts: Option<Vec<Vec<i32>>>,
}

const VALUES: &str = "values.bin";
const DOCUMENT: &str = "index.json";

fn io(path: &Path) -> impl Fn(std::io::Error) -> SpoolError + '_ {
    move |source| SpoolError::Io { path: path.to_owned(), source }
}

/// Writes values, then the document.
pub struct Writer {
    folder: PathBuf,
    values: BufWriter<File>,
    at: u64,
}

impl Writer {
    /// A spool in `folder`, which is made.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(folder: &Path) -> Result<Self, SpoolError> {
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        let path = folder.join(VALUES);
        let values = BufWriter::new(File::create(&path).map_err(io(&path))?);
        Ok(Self { folder: folder.to_owned(), values, at: 0 })
    }

    /// Appends a value.
    ///
    /// # Errors
    /// The file system's.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Place, SpoolError> {
        self.values.write_all(bytes).map_err(io(&self.folder))?;
        let place = Place { at: self.at, len: bytes.len() as u64 };
        self.at += place.len;
        Ok(place)
    }

    /// Appends 32-bit floats.
    ///
    /// # Errors
    /// The file system's.
    pub fn push_f32(&mut self, values: &[f32]) -> Result<Place, SpoolError> {
        self.push(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Writes the document, which makes the spool whole.
    ///
    /// # Errors
    /// The file system's.
    pub fn finish<T: Serialize>(&mut self, document: &T) -> Result<(), SpoolError> {
        self.values.flush().map_err(io(&self.folder))?;
        let path = self.folder.join(DOCUMENT);
        let text = serde_json::to_vec(document).expect("documents are plain data");
        crate::atomic::write_with(&path, |partial| std::fs::write(partial, text)).map_err(io(&path))
    }
}

/// Reads values by place.
pub struct Reader<T> {
    /// What lies where.
    pub document: T,
    path: PathBuf,
    values: File,
}

impl<T: for<'de> Deserialize<'de>> Reader<T> {
    /// Opens the spool in `folder`.
    ///
    /// # Errors
    /// The file system's, or when there is no whole spool.
    pub fn open(folder: &Path) -> Result<Self, SpoolError> {
        let path = folder.join(DOCUMENT);
        let text = std::fs::read(&path).map_err(io(&path))?;
        let document = serde_json::from_slice(&text)
            .map_err(|error| SpoolError::Malformed { path, why: error.to_string() })?;
        let path = folder.join(VALUES);
        let values = File::open(&path).map_err(io(&path))?;
        Ok(Self { document, path, values })
    }

    /// The bytes at `place`.
    ///
    /// # Errors
    /// The file system's, or a place beyond the end.
    pub fn read(&mut self, place: Place) -> Result<Vec<u8>, SpoolError> {
        let held = self.values.metadata().map_err(io(&self.path))?.len();
        let len = usize::try_from(place.len).ok();
        let Some(len) = len.filter(|_| place.at.checked_add(place.len).is_some_and(|end| end <= held)) else {
            let why = format!("bytes {}+{} of {held}", place.at, place.len);
            return Err(SpoolError::Malformed { path: self.path.clone(), why });
        };
        let mut bytes = vec![0; len];
        self.values.seek(SeekFrom::Start(place.at)).map_err(io(&self.path))?;
        self.values.read_exact(&mut bytes).map_err(io(&self.path))?;
        Ok(bytes)
    }

    /// 32-bit floats at `place`, widened.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_f32(&mut self, place: Place) -> Result<Vec<f64>, SpoolError> {
        let bytes = self.read(place)?;
        Ok(bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect())
    }
}

/// The spool of one walk.
pub type Walked = Reader<GraphInfo>;

/// The spool of a whole case.
pub type Case = Reader<Vec<Recorded>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_places_beyond_the_end_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(folder.path()).unwrap();
        let (a, b) = (writer.push(b"abc").unwrap(), writer.push_f32(&[1.5, -2.0]).unwrap());
        assert!(Reader::<Vec<u32>>::open(folder.path()).is_err(), "not whole yet");
        writer.finish(&vec![7u32]).unwrap();
        let mut reader = Reader::<Vec<u32>>::open(folder.path()).unwrap();
        assert_eq!(reader.document, [7]);
        assert_eq!(
            (reader.read(a).unwrap(), reader.read_f32(b).unwrap()),
            (b"abc".to_vec(), vec![1.5, -2.0])
        );
        for place in [Place { at: 3, len: 9 }, Place { at: u64::MAX, len: 2 }] {
            assert!(reader.read(place).unwrap_err().to_string().contains("values.bin"));
        }
    }
}
