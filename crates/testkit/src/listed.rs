//! That no case of a suite is forgotten in its list.

use std::collections::BTreeSet;

/// Whether the list names exactly the cases that each theme's source has.
pub(crate) fn every_case_is_listed(list: &str, themes: &[(&str, &str)]) {
    let listed: Vec<&str> = list.split_whitespace().collect();
    for (theme, source) in themes {
        let begin = listed.windows(2).position(|pair| pair == [*theme, "{"]);
        let cases: BTreeSet<&str> = listed[begin.unwrap() + 2..]
            .iter()
            .take_while(|word| **word != "}")
            .filter(|word| !word.starts_with('#'))
            .copied()
            .collect();
        let written: BTreeSet<&str> = bodies(source).map(|(case, _)| case).collect();
        assert!(!written.is_empty());
        assert_eq!(cases, written, "{theme}");
    }
}

/// The cases of a theme's source, each with its text.
pub(crate) fn bodies(source: &str) -> impl Iterator<Item = (&str, &str)> {
    source.split("\npub async fn ").skip(1).filter_map(|text| {
        let name = text.split(['<', '(']).next()?;
        Some((name, text.split("\n}\n").next()?))
    })
}
