//! Tokenizers built from a file's own metadata, with llama.cpp's token ids.
//!
//! | module | what it does |
//! |---|---|
//! | `vocabulary` | token texts, types and scores |
//! | `special` | roles of tokens, special tokens spelled out in a text |
//! | `pre`, `bpe` | byte-level BPE (`gpt2`): cutting into words, merging |
//! | `spm` | SentencePiece's BPE (`llama`) |
//! | `decode` | back to text |
//! | `chat` | conversations as the file's template writes them |
//!
//! Where llama.cpp silently drops characters that have no token, encoding is an error: a prompt that lost
//! a character would be another prompt. An unknown tokenizer or pre-tokenizer is an error, too.

mod bpe;
mod chat;
mod decode;
mod pre;
mod special;
mod spm;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::fmt;
use std::path::{Path, PathBuf};

pub use chat::{ChatOptions, Message};
pub use decode::SpecialTokens;
pub use vocabulary::TokenType;

use bpe::Bpe;
use chat::Template;
use special::{Piece, Roles, Spellings};
use spm::Spm;
use vocabulary::Vocabulary;

use crate::error::{Error, ErrorKind, quoted};
use crate::gguf::{GgufFile, Metadata};

const MODEL_KEY: &str = "tokenizer.ggml.model";

/// How a text without special tokens becomes tokens.
enum Scheme {
    Bpe(Box<Bpe>),
    Spm(Spm),
}

/// Why a text has no tokens.
#[derive(Debug)]
enum Lost {
    /// This character has none; it stands at this byte.
    Character { at: usize, c: char },
    /// Something else, in words.
    Other(String),
}

/// What encoding does besides the text itself; the names are llama.cpp's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EncodeOptions {
    /// Whether the tokens of begin and end of sequence are added where the file asks for them.
    pub add_special: bool,
    /// Whether control tokens spelled out in the text are those tokens, or plain text. User-defined
    /// tokens are recognised in any case.
    pub parse_special: bool,
}

/// A model's tokenizer.
pub struct Tokenizer {
    file: PathBuf,
    vocabulary: Vocabulary,
    scheme: Scheme,
    roles: Roles,
    spellings: Spellings,
    template: Option<Template>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("file", &self.file)
            .field("pre", &self.pre_tokenizer())
            .field("n_vocab", &self.n_vocab())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer that a file describes.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, Error> {
        Self::from_metadata(file.metadata(), file.path())
    }

    /// The same for metadata at hand; `file` is for messages only.
    pub fn from_metadata(m: &Metadata, file: &Path) -> Result<Self, Error> {
        Self::read(m, file).map_err(|e| e.file(file))
    }

    fn read(m: &Metadata, file: &Path) -> Result<Self, Error> {
        let model = m.str(MODEL_KEY)?;
        if !matches!(model, "gpt2" | "llama") {
            let message =
                "this tokenizer is not implemented; byte-level BPE, gpt2, and SentencePiece, llama, are";
            return Err(m.locate(Error::unsupported(message), MODEL_KEY));
        }
        let vocabulary = Vocabulary::read(m)?;
        let (scheme, add_bos) = if model == "gpt2" {
            let bpe = Bpe::read(m, &vocabulary)?;
            let add_bos = bpe.pre.add_bos;
            (Scheme::Bpe(Box::new(bpe)), add_bos)
        } else {
            (Scheme::Spm(Spm::read(m, &vocabulary)?), true)
        };
        let roles = Roles::read(m, &vocabulary, add_bos)?;
        let spellings = Spellings::new(&vocabulary);
        let template = Template::read(m)?;
        Ok(Self { file: file.to_path_buf(), vocabulary, scheme, roles, spellings, template })
    }

    /// A text's tokens. Special tokens spelled out in the text are recognised; tokens of begin and end of
    /// sequence are added if the file says so. An error if a character has no token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.encode_with(text, EncodeOptions { add_special: true, parse_special: true })
    }

    /// A text's tokens. An error if a character has no token.
    pub fn encode_with(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::new();
        if options.add_special && self.roles.add_bos {
            ids.extend(self.roles.bos);
        }
        // Whether what comes next begins the text or follows a special token.
        let mut first = true;
        for piece in self.spellings.split(text, options.parse_special) {
            match piece {
                Piece::Token(id) => {
                    ids.push(id);
                    first = true;
                }
                Piece::Text(at, text) => {
                    match &self.scheme {
                        Scheme::Bpe(bpe) => bpe.encode(text, &mut ids),
                        Scheme::Spm(spm) => spm.encode(&self.vocabulary, text, first, &mut ids),
                    }
                    .map_err(|lost| self.lost(at, lost))?;
                    first = false;
                }
            }
        }
        if options.add_special && self.roles.add_eos {
            ids.extend(self.roles.eos);
        }
        Ok(ids)
    }

    fn lost(&self, start: usize, lost: Lost) -> Error {
        let message = match lost {
            Lost::Character { at, c } => format!(
                "the vocabulary has no token for {} at byte {} of the text",
                quoted(c.encode_utf8(&mut [0; 4])),
                start + at
            ),
            Lost::Other(message) => message,
        };
        Error::new(ErrorKind::Tokenizer, message).file(&self.file)
    }

    /// A token as the vocabulary spells it: in the byte-level alphabet, or with `▁` for spaces.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.get(id).map(|(text, _)| text)
    }

    /// What a token is for.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.vocabulary.get(id).map(|(_, ty)| ty)
    }

    /// The token with this spelling.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text)
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// The pre-tokenizer's name; SentencePiece has none and is called `llama`.
    pub fn pre_tokenizer(&self) -> &'static str {
        match &self.scheme {
            Scheme::Bpe(bpe) => bpe.pre.name,
            Scheme::Spm(_) => "llama",
        }
    }

    /// The tokens that end a generation, ascending: those that the metadata names as end of sequence, of
    /// turn or of message, and those with a text in common use for it.
    pub fn eog_ids(&self) -> &[u32] {
        &self.roles.ends
    }

    /// The begin-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The end-of-sequence token.
    pub fn eos_id(&self) -> Option<u32> {
        self.roles.eos
    }

    /// The mask token of a masked-diffusion model.
    pub fn mask_id(&self) -> Option<u32> {
        self.roles.mask
    }
}
