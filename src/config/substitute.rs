//! `${VAR}` and `${VAR:-default}` in the texts of the configuration file.

/// Replaces each `${VAR}` by the variable, or by its default where the variable is unset or empty; `$${`
/// stands for `${`. `None` for a text without any.
///
/// # Errors
///
/// What is wrong and what to do: a variable that is not set, or a `${` that begins no variable.
pub(super) fn substitute(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, String> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            replaced.push_str(before);
            replaced.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        replaced.push_str(&rest[..at]);
        let reference = &rest[at + 2..];
        let Some(end) = end_of(reference) else {
            return Err("contains ${ without }; add it, or write $${ for the text ${".to_owned());
        };
        let (reference, behind) = (&reference[..end], &reference[end + 1..]);
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        if !is_name(name) {
            // Not quoted as a whole: `${NAME:default}` has a colon for `:-`, and may hold a secret.
            let begin = name.split(|one: char| !one.is_ascii_alphanumeric() && one != '_').next();
            return Err(format!(
                "contains ${{{}…}}, which is not a variable name; write ${{NAME}} or \
                 ${{NAME:-default}}, or $${{ for the text ${{",
                begin.unwrap_or_default()
            ));
        }
        match (variable(name), default) {
            (Some(value), None) => replaced.push_str(&value),
            (Some(value), Some(_)) if !value.is_empty() => replaced.push_str(&value),
            (_, Some(default)) => replaced.push_str(default),
            (None, None) => {
                return Err(format!(
                    "contains ${{{name}}}, but the environment variable {name} is not set; set \
                     it, or write ${{{name}:-default}}"
                ));
            }
        }
        rest = behind;
    }
    replaced.push_str(rest);
    Ok(Some(replaced))
}

/// The place of the `}` that ends a reference: a default such as `{type}` may have pairs of its own.
fn end_of(reference: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, one) in reference.char_indices() {
        match one {
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("db".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_and_defaults_are_replaced() {
        for (text, replaced) in [
            ("plain $HOST {type}", None),
            ("mongodb://${HOST}:${PORT:-27017}/app", Some("mongodb://db:27017/app")),
            ("${EMPTY:-x}${EMPTY}", Some("x")),
            ("${NOPE:-}", Some("")),
            ("$${HOST} ${HOST}", Some("${HOST} db")),
            ("${URI:-a:-b}", Some("a:-b")),
            ("${T:-{type}}", Some("{type}")),
            ("${T:-{a}.{b}} ${HOST:-{c}}", Some("{a}.{b} db")),
            ("${T:-a}b}", Some("ab}")),
        ] {
            assert_eq!(substitute(text, variable), Ok(replaced.map(str::to_owned)), "{text}");
        }
    }

    #[test]
    fn unset_variable_and_invalid_reference_are_errors() {
        for (text, words) in [
            ("a ${PORT} b", "the environment variable PORT is not set"),
            ("${HOST", "without }"),
            ("${T:-{type}", "without }"),
            ("${A B}", "is not a variable name"),
            ("${}", "is not a variable name"),
        ] {
            let error = substitute(text, variable).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        let error = substitute("mongodb://u:${PW:hush}@h", variable).unwrap_err();
        assert!(error.contains("${PW…}") && !error.contains("hush"), "{error}");
    }
}
