//! Templates: any text is read, or refused with an error; and filled in correctly.

use postrider::routing::{RouteInput, Template};
use proptest::prelude::*;

use crate::{arbitrary, corpus};

/// A part of a template, and its meaning.
#[derive(Clone, Debug)]
enum Part {
    Literal(String),
    Type,
    Key,
    Destination,
    Tenant,
    Header(String),
}

fn part() -> impl Strategy<Value = Part> {
    let header = "[a-z-]{1,8}";
    prop_oneof![
        3 => arbitrary::text().prop_map(Part::Literal),
        1 => Just(Part::Type),
        1 => Just(Part::Key),
        1 => Just(Part::Destination),
        1 => Just(Part::Tenant),
        1 => header.prop_map(Part::Header),
    ]
}

proptest! {
    #[test]
    fn any_text_is_a_template_or_an_error(text in prop_oneof![
        "[{}a.é]{0,16}",
        "(\\{(type|key|destination|tenantId|aggregate|header\\.[a-z]{0,3}|[a-z]{0,6})\\}?|\\{\\{|x){0,6}",
        arbitrary::text(),
    ]) {
        judge(&text)?;
    }

    #[test]
    fn a_template_is_filled_in_part_by_part(
        parts in proptest::collection::vec(part(), 0..6),
        kind in arbitrary::text(),
        others in proptest::array::uniform3(proptest::option::of(arbitrary::text())),
        headers in arbitrary::headers(),
    ) {
        let [key, destination, tenant_id] = &others;
        let input = RouteInput {
            kind: &kind,
            key: key.as_deref(),
            destination: destination.as_deref(),
            tenant_id: tenant_id.as_deref(),
            headers: &headers,
        };
        let header = |name: &str| {
            headers.iter().find(|(own, _)| own == name).and_then(|(_, value)| value.text())
        };
        let mut text = String::new();
        let mut expected = Some(String::new());
        for part in &parts {
            let (written, filled) = match part {
                Part::Literal(literal) => (literal.replace('{', "{{"), Some(literal.clone())),
                Part::Type => ("{type}".to_owned(), Some(kind.clone())),
                Part::Key => ("{key}".to_owned(), key.clone()),
                Part::Destination => ("{destination}".to_owned(), destination.clone()),
                Part::Tenant => ("{tenantId}".to_owned(), tenant_id.clone()),
                Part::Header(name) => (format!("{{header.{name}}}"), header(name)),
            };
            text += &written;
            expected = expected.zip(filled).map(|(all, filled)| all + &filled);
        }

        let rendered = Template::parse(&text).unwrap().render(&input);

        prop_assert_eq!(rendered.ok(), expected, "{:?}", text);
    }
}

fn judge(text: &str) -> Result<(), TestCaseError> {
    let input =
        RouteInput { kind: "T", key: None, destination: None, tenant_id: None, headers: &[] };
    match Template::parse(text) {
        Ok(template) => match template.render(&input) {
            Ok(rendered) => prop_assert!(rendered.len() <= text.len()),
            Err(missing) => prop_assert!(missing.to_string().starts_with("the record has no ")),
        },
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

#[test]
fn the_corpus_is_read() {
    for text in corpus::lines("templates") {
        judge(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    }
}
