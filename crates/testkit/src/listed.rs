//! That no case of a suite is forgotten in its list.

use std::collections::BTreeSet;

/// Whether the list names exactly the cases that each theme's source has.
pub(crate) fn every_case_is_listed(list: &str, themes: &[(&str, &str)]) {
    let listed: Vec<&str> = list.split_whitespace().collect();
    for (theme, source) in themes {
        let begin = listed.windows(2).position(|pair| pair == [*theme, "{"]);
        let cases: BTreeSet<&str> =
            listed[begin.unwrap() + 2..].iter().take_while(|word| **word != "}").copied().collect();
        let written: BTreeSet<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub async fn "))
            .filter_map(|line| line.split(['<', '(']).next())
            .collect();
        assert!(!written.is_empty());
        assert_eq!(cases, written, "{theme}");
    }
}
