//! Reads the URI of a broker, as <https://www.rabbitmq.com/docs/uri-spec> describes it.
//!
//! The parser of `amqp-protocol-uri` (10.6) takes a host out of a password that is not escaped, connects to
//! `localhost` in place of an IPv6 address, and ignores parameters that it does not know.

use std::net::Ipv6Addr;
use std::str::FromStr;

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};

/// The channels that each connection must be able to have: that for messages and that for liveness. The control
/// connection has one at least.
pub(super) const REQUIRED_CHANNELS: u16 = 2;

/// The parameters that `lapin` knows.
const PARAMETERS: &str = "frame_max, channel_max, heartbeat, connection_timeout and auth_mechanism";

/// Reads a URI.
///
/// # Errors
///
/// What is wrong, without any part of the URI that may be a password.
pub(super) fn parse(text: &str) -> Result<AMQPUri, String> {
    let (scheme, rest) = text.split_once("://").ok_or("has no scheme (amqp:// or amqps://)")?;
    let scheme: AMQPScheme = scheme
        .to_ascii_lowercase()
        .parse()
        .map_err(|_| "the scheme must be amqp, or amqps for TLS".to_owned())?;
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("contains a space or a control character".to_owned());
    }
    if rest.contains('#') {
        return Err("contains #; write it as %23".to_owned());
    }
    if rest.matches('@').count() > 1 {
        return Err("contains more than one @; write those before the last one, and those in the \
                    vhost, as %40"
            .to_owned());
    }
    let (rest, query) =
        rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, vhost) =
        rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let is_behind = |part: Option<&str>| part.is_some_and(|part| part.contains('@'));
    if is_behind(vhost) || is_behind(query) {
        return Err("contains / or ? before the @; write them as %2F and %3F in the user and the \
                    password, and @ as %40 in the vhost"
            .to_owned());
    }
    let (userinfo, address) =
        authority.rsplit_once('@').map_or((None, authority), |(user, rest)| (Some(user), rest));
    let (host, port) = address_of(address)?;
    let default = AMQPAuthority::default();
    Ok(AMQPUri {
        authority: AMQPAuthority {
            userinfo: userinfo.map_or(Ok(default.userinfo), user_of)?,
            host: if host.is_empty() { default.host } else { host },
            port: port.unwrap_or_else(|| scheme.default_port()),
        },
        scheme,
        vhost: vhost.map_or(Ok("/".to_owned()), decode)?,
        query: query.map_or(Ok(AMQPQueryString::default()), parameters)?,
    })
}

/// Reads `user:password`. As in RabbitMQ's other clients, a part that is missing is `guest`.
fn user_of(userinfo: &str) -> Result<AMQPUserInfo, String> {
    let default = AMQPUserInfo::default();
    let (username, password) = userinfo
        .split_once(':')
        .map_or((userinfo, None), |(username, password)| (username, Some(password)));
    Ok(AMQPUserInfo {
        username: if username.is_empty() { default.username } else { decode(username)? },
        password: password.map_or(Ok(default.password), decode)?,
    })
}

/// Reads `host:port`.
fn address_of(address: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("has a [ without a ]")?;
            let host = decode(host)?;
            // Behind a % is the name of an interface.
            let ip = host.split('%').next().unwrap_or_default();
            ip.parse::<Ipv6Addr>().map_err(|_| "what is in brackets is not an IPv6 address")?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or("has text between ] and the port")?),
            };
            (host, port)
        }
        None => {
            let (host, port) =
                address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port)));
            if host.contains(['[', ']', '<', '>', '^', '|', '\\', '"']) {
                return Err("has a host with a character that no host has".to_owned());
            }
            (decode(host)?, port)
        }
    };
    if host.is_empty() && port.is_some() {
        return Err("has a port and no host; write an IPv6 address in brackets".to_owned());
    }
    let port = port.filter(|port| !port.is_empty()).map(|port| {
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        port.parse::<u16>().ok().filter(|port| is_number && *port > 0).ok_or(
            "the port is not a number between 1 and 65535; write an IPv6 address in brackets",
        )
    });
    Ok((host, port.transpose()?))
}

fn parameters(query: &str) -> Result<AMQPQueryString, String> {
    let mut parameters = AMQPQueryString::default();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decode(value)?;
        let is_repeated = match name {
            "frame_max" => parameters.frame_max.replace(number(name, &value)?).is_some(),
            "channel_max" => parameters.channel_max.replace(channel_max(&value)?).is_some(),
            "heartbeat" => parameters.heartbeat.replace(number(name, &value)?).is_some(),
            "connection_timeout" => {
                parameters.connection_timeout.replace(number(name, &value)?).is_some()
            }
            "auth_mechanism" => {
                let mechanism = value.parse();
                let mechanism = mechanism.map_err(|_| "auth_mechanism: unknown mechanism")?;
                parameters.auth_mechanism.replace(mechanism).is_some()
            }
            _ => {
                return Err(format!("unknown parameter {name:?}; the parameters are {PARAMETERS}"));
            }
        };
        if is_repeated {
            return Err(format!("{name} is set twice"));
        }
    }
    Ok(parameters)
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} is not a number, or too large"))
}

fn channel_max(value: &str) -> Result<u16, String> {
    match number("channel_max", value)? {
        // The broker's limit.
        0 => Ok(0),
        few if few < REQUIRED_CHANNELS => {
            Err(format!("channel_max = {few}: {REQUIRED_CHANNELS} channels are required"))
        }
        enough => Ok(enough),
    }
}

/// Decodes `%` and two digits.
fn decode(text: &str) -> Result<String, String> {
    let is_escape =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if text.split('%').skip(1).any(|rest| !is_escape(rest)) {
        return Err("contains a % without two hexadecimal digits; write it as %25".to_owned());
    }
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| "contains escaped bytes that are not UTF-8")?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, detail: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(detail), "{text}: {error}");
        assert!(!error.contains("p4ss"), "{text}: {error}");
    }

    fn address(text: &str) -> (String, u16) {
        let AMQPAuthority { host, port, .. } = parse(text).unwrap().authority;
        (host, port)
    }

    #[test]
    fn every_part_is_read() {
        let uri =
            parse("amqps://us%40er:p%3A4:ss%23@h.example:5999/v%2Fh/ost?heartbeat=7").unwrap();

        assert_eq!(uri.scheme, AMQPScheme::AMQPS);
        assert_eq!(uri.authority.userinfo.username, "us@er");
        assert_eq!(uri.authority.userinfo.password, "p:4:ss#");
        assert_eq!((uri.authority.host.as_str(), uri.authority.port), ("h.example", 5999));
        assert_eq!(uri.vhost, "v/h/ost");
        assert_eq!(uri.query.heartbeat, Some(7));
    }

    #[test]
    fn missing_parts_are_those_of_the_parser_of_lapin() {
        for text in
            ["amqp://", "amqp://h", "amqps://h", "amqp://u@h/", "amqp://h:5673/%2f", "amqp:///v"]
        {
            assert_eq!(parse(text), text.parse(), "{text}");
        }
    }

    #[test]
    fn path_names_the_vhost() {
        for (path, vhost) in
            [("", "/"), ("/", ""), ("/%2f", "/"), ("//", "/"), ("//a", "/a"), ("/a/../b", "a/../b")]
        {
            assert_eq!(parse(&format!("amqp://h{path}")).unwrap().vhost, vhost, "{path}");
        }
    }

    #[test]
    fn ipv6_host_is_in_brackets() {
        assert_eq!(address("amqp://u:p@[2001:db8::1]/v"), ("2001:db8::1".to_owned(), 5672));
        assert_eq!(address("amqps://[::1]:9/v"), ("::1".to_owned(), 9));
        assert_eq!(address("amqp://[fe80::1%25eth0]"), ("fe80::1%eth0".to_owned(), 5672));
        refused("amqp://::1:5672/v", "brackets");
        refused("amqp://[127.0.0.1]/v", "IPv6");
        refused("amqp://[::1/v", "]");
    }

    #[test]
    fn character_that_is_not_escaped_is_refused() {
        refused("amqp://u:p4ss@x@h:5672/v", "%40");
        refused("amqp://u:p4ss#x@h:5672/v", "%23");
        refused("amqp://u:p4ss?x@h:5672/v", "%3F");
        refused("amqp://u:p4ss/x@h:5672/v", "%2F");
        refused("amqp://u:p4ss%x@h:5672/v", "%25");
        refused("amqp://u:p4ss%zz@h:5672/v", "%25");
        refused("amqp://u:p4ss x@h:5672/v", "space");
        refused("amqp://guest:p4ss@127.0.0.1:5999#1@127.0.0.1:5872/ux", "%23");
        refused("amqp://u:p4ss", "port");
        refused("p4ss", "scheme");
        refused("http://u:p4ss@h", "scheme");
    }

    #[test]
    fn parameter_is_refused_if_it_would_have_no_effect() {
        refused("amqp://h?foo=bar", "unknown parameter \"foo\"");
        refused("amqp://h?vhost=x&heartbeat=1", "unknown parameter \"vhost\"");
        refused("amqp://h?heartbeat=soon", "heartbeat is not a number");
        refused("amqp://h?heartbeat=1&heartbeat=2", "twice");
        refused("amqp://h?channel_max=1", "2 channels are required");
        assert_eq!(parse("amqp://h?channel_max=0").unwrap().query.channel_max, Some(0));
        assert_eq!(parse("amqp://h?").unwrap().query, AMQPQueryString::default());
    }
}
