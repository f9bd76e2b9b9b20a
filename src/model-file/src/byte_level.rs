//! The byte-level alphabet of GPT-2's BPE: each of the 256 bytes has one printable character.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 are numbered from U+0100 upwards in byte
//! order, so a space is `Ġ` and a line feed `Ċ`.

/// Whether a byte is its own character.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const TO_CHAR: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = MOVED;
    let mut byte = 0;
    while byte < 256 {
        let code = if is_plain(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        table[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => panic!("not a character"),
        };
        byte += 1;
    }
    table
};

/// The first character that stands for a byte other than itself, and how many there are.
const MOVED: u32 = 0x100;
const N_MOVED: usize = 68;

/// The bytes of the characters from U+0100 on.
const FROM_MOVED: [u8; N_MOVED] = {
    let mut table = [0; N_MOVED];
    let mut byte = 0;
    while byte < 256 {
        let code = TO_CHAR[byte] as u32;
        if code >= MOVED {
            table[(code - MOVED) as usize] = byte as u8;
        }
        byte += 1;
    }
    table
};

/// The character that stands for a byte.
pub(crate) const fn to_char(byte: u8) -> char {
    TO_CHAR[byte as usize]
}

/// The byte a character stands for; `None` outside the alphabet.
pub(crate) fn to_byte(c: char) -> Option<u8> {
    let code = c as u32;
    match u8::try_from(code) {
        Ok(byte) => is_plain(byte).then_some(byte),
        Err(_) => FROM_MOVED.get((code - MOVED) as usize).copied(),
    }
}

/// A text in the alphabet.
pub(crate) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| to_char(b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=u8::MAX {
            assert!(seen.insert(to_char(byte)));
            assert_eq!(to_byte(to_char(byte)), Some(byte));
        }
        assert_eq!(to_byte('\u{AD}'), None);
        assert_eq!(to_byte('€'), None);
    }

    #[test]
    fn known_letters() {
        assert_eq!(spell(b" a\n"), "ĠaĊ");
        assert_eq!(to_char(0xAD), 'Ń');
    }
}
