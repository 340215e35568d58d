//! Prints the outbox's schema as a mongosh script.

use bson::Bson;
use postrider_settings::units;

use crate::outbox::collections::names;
use crate::schema::literal::{COMMON, fill, index_entry, literal};
use crate::schema::options::Validator;
use crate::schema::outbox::INDEXES;
use crate::schema::{SchemaOptions, validator};

/// The script, with `{{…}}` in place of the schema.
const TEMPLATE: &str = include_str!("setup.template.js");

/// Returns a `mongosh` script with the effect of [`apply`](super::apply()).
///
/// `prefix` and `options` are its defaults; its environment (`OUTBOX_PREFIX`, `OUTBOX_RETENTION`,
/// `OUTBOX_VALIDATOR`) overrides them. At the defaults it is the file `schema/mongodb-setup.js`.
pub fn script(prefix: &str, options: &SchemaOptions) -> String {
    let validation = match options.validator {
        Validator::Error => "error",
        Validator::Warn => "warn",
        Validator::Off => "off",
    };
    let retention = units::HumanDuration::format(options.retention);
    let all = names::ALL.iter().map(|name| Bson::from(*name)).collect();
    let indexes: Vec<String> = INDEXES.iter().map(|index| index_entry("", index)).collect();
    fill(
        TEMPLATE,
        [
            ("common", COMMON.trim_end().to_owned()),
            ("collections", literal(&Bson::Array(all), 0)),
            ("records", literal(&names::RECORDS.into(), 0)),
            ("validator", literal(&validator::validator().into(), 0)),
            ("indexes", indexes.join("\n")),
            ("level", literal(&validator::LEVEL.into(), 0)),
            ("retention", literal(&retention.into(), 0)),
            ("validation", literal(&validation.into(), 0)),
            ("prefix", literal(&prefix.into(), 0)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blessed::compare;

    #[test]
    fn the_file_in_the_repository_is_the_script_at_the_defaults() {
        compare("schema/mongodb-setup.js", &script("", &SchemaOptions::default()));
    }

    #[test]
    fn every_place_in_the_template_is_filled() {
        let script = script("app_", &SchemaOptions::default());

        assert!(!script.contains("{{"), "{script}");
        assert!(script.contains(r#"process.env.OUTBOX_PREFIX ?? "app_";"#));
    }
}
