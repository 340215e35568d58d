//! Templates for destinations and keys: `orders.{type}`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::routing::input::RouteInput;

/// A parsed template. `{{` stands for a brace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(Variable),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Variable {
    Type,
    Key,
    Destination,
    TenantId,
    Aggregate,
    Header(String),
}

/// A template that can't be read: a start-up error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{` without `}`.
    #[error("the brace at character {at} is not closed; close it, or write {{{{ for a brace")]
    Unclosed {
        /// Where it opens, from 1.
        at: usize,
    },
    /// A name that no record has.
    #[error(
        "unknown variable {{{name}}}; use {{type}}, {{key}}, {{destination}}, {{tenantId}}, \
         {{aggregate}} or {{header.NAME}}"
    )]
    Unknown {
        /// What stands between the braces.
        name: String,
    },
}

/// A record lacks what a template names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    variable: Variable,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// [`TemplateError`], which says where and what would be right.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            literal.push_str(&rest[..open]);
            let behind = &rest[open + 1..];
            if let Some(behind) = behind.strip_prefix('{') {
                literal.push('{');
                rest = behind;
                continue;
            }
            let Some(close) = behind.find('}') else {
                let before = text.len() - rest.len() + open;
                return Err(TemplateError::Unclosed { at: text[..before].chars().count() + 1 });
            };
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::Variable(Variable::parse(&behind[..close])?));
            rest = &behind[close + 1..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }

    /// The template `{type}`.
    pub fn message_type() -> Self {
        Self { parts: vec![Part::Variable(Variable::Type)] }
    }

    /// A template without variables: this text for every record.
    pub fn fixed(text: &str) -> Self {
        let parts = if text.is_empty() { Vec::new() } else { vec![Part::Text(text.to_owned())] };
        Self { parts }
    }

    /// Its text, where it names no variable: the same for every record.
    pub fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Fills the template in.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the record does not have what the template names.
    pub fn render(&self, input: &RouteInput<'_>) -> Result<String, Missing> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Variable(variable) => {
                    let value = variable.of(input);
                    text.push_str(&value.ok_or_else(|| Missing { variable: variable.clone() })?);
                }
            }
        }
        Ok(text)
    }
}

impl TryFrom<String> for Template {
    type Error = TemplateError;

    fn try_from(text: String) -> Result<Self, TemplateError> {
        Self::parse(&text)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.to_string()
    }
}

impl Variable {
    fn parse(name: &str) -> Result<Self, TemplateError> {
        Ok(match name {
            "type" => Self::Type,
            "key" => Self::Key,
            "destination" => Self::Destination,
            "tenantId" => Self::TenantId,
            "aggregate" => Self::Aggregate,
            _ => match name.strip_prefix("header.") {
                Some(header) if !header.is_empty() => Self::Header(header.to_owned()),
                _ => return Err(TemplateError::Unknown { name: name.to_owned() }),
            },
        })
    }

    fn of(&self, input: &RouteInput<'_>) -> Option<String> {
        match self {
            Self::Type => Some(input.kind.to_owned()),
            Self::Key => input.key.map(str::to_owned),
            Self::Destination => input.destination.map(str::to_owned),
            Self::TenantId => input.tenant_id.map(str::to_owned),
            Self::Aggregate => header(input, "aggregate-name"),
            Self::Header(name) => header(input, name),
        }
    }
}

fn header(input: &RouteInput<'_>, name: &str) -> Option<String> {
    let (_, value) = input.headers.iter().find(|(own, _)| own == name)?;
    value.text()
}

/// As it is written in the configuration.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(&text.replace('{', "{{"))?,
                Part::Variable(variable) => write!(f, "{{{variable}}}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type => "type",
            Self::Key => "key",
            Self::Destination => "destination",
            Self::TenantId => "tenantId",
            Self::Aggregate => "aggregate",
            Self::Header(name) => return write!(f, "header.{name}"),
        })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            Variable::Aggregate => f.write_str("the record has no header aggregate-name"),
            Variable::Header(name) => write!(f, "the record has no header {name:?}"),
            variable => write!(f, "the record has no {variable}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider_outbox::header::HeaderValue;

    use super::*;

    fn input(headers: &[(String, HeaderValue)]) -> RouteInput<'_> {
        RouteInput { kind: "Created", key: Some("k"), destination: None, tenant_id: None, headers }
    }

    #[test]
    fn variables_are_filled_in_and_a_double_brace_is_one() {
        let headers = [
            ("aggregate-name".to_owned(), HeaderValue::String("order".into())),
            ("n".to_owned(), HeaderValue::Int32(7)),
        ];
        let template = Template::parse("{{x.{aggregate}.{type}.{key}.{header.n}").unwrap();

        assert_eq!(template.render(&input(&headers)).unwrap(), "{x.order.Created.k.7");
    }

    #[test]
    fn only_what_names_no_variable_is_known_without_a_record() {
        for (text, literal) in
            [("", Some("")), ("a.b", Some("a.b")), ("{{a", Some("{a")), ("a.{type}", None)]
        {
            assert_eq!(Template::parse(text).unwrap().literal(), literal, "{text}");
        }
    }

    #[test]
    fn something_absent_is_named() {
        let tenant = Template::parse("{tenantId}").unwrap().render(&input(&[])).unwrap_err();
        let header = Template::parse("{header.a}").unwrap().render(&input(&[])).unwrap_err();

        assert_eq!(tenant.to_string(), "the record has no tenantId");
        assert_eq!(header.to_string(), "the record has no header \"a\"");
    }

    #[test]
    fn bad_syntax_is_an_error_that_says_what_would_be_right() {
        let unclosed = Template::parse("ab{type").unwrap_err().to_string();
        let unknown = Template::parse("{tpye}").unwrap_err().to_string();

        assert_eq!(
            unclosed,
            "the brace at character 3 is not closed; close it, or write {{ for a brace"
        );
        assert!(unknown.starts_with("unknown variable {tpye}; use {type}, "), "{unknown}");
    }
}
