//! Sizes as people write them: `1 MiB`, `512 kB`, `1000000`.

const UNITS: [(&str, usize); 7] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
];

/// Reads a size in bytes.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let refused = || {
        format!("{text:?} is not a size; use a number and B, kB, MB, KiB, MiB or GiB, as in 1 MiB")
    };
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: usize = text[..digits].parse().map_err(|_| refused())?;
    let unit = text[digits..].trim().to_ascii_lowercase();
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
    number.checked_mul(factor).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("1 MiB", 1 << 20), ("512kB", 512_000), ("7", 7), ("2 GiB", 2 << 30), ("0 B", 0)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1.5 MiB", "-1", "1 TB", "99999999999999 GiB"] {
            assert!(parse(text).unwrap_err().contains("1 MiB"), "{text}");
        }
    }
}
