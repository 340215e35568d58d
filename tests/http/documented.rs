//! The requests of `docs/http.md` succeed, in their order.

use reqwest::Method;

use crate::api::{Answer, Api};
use crate::support::doc_page::{blocks, root};
use crate::support::outbox::TestOutbox;

/// The words of a `curl` command, of which the page quotes some in `'…'`.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for letter in command.replace("\\\n", " ").trim().chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            letter if letter.is_whitespace() && !is_quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

async fn send(api: &Api, command: &str) -> Answer {
    let (mut method, mut path, mut body, mut headers) = (None, None, None, Vec::new());
    let mut words = words(command).into_iter().skip(1);
    while let Some(word) = words.next() {
        match &*word {
            "-X" => method = words.next(),
            "-d" => body = words.next(),
            "-H" => headers.push(words.next().unwrap()),
            url => path = Some(url.strip_prefix("localhost:8080").unwrap().to_owned()),
        }
    }
    let method = Method::from_bytes(method.unwrap().as_bytes()).unwrap();
    let mut request = api.request(method, &path.unwrap()).body(body.unwrap());
    for header in headers {
        let (name, value) = header.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    Answer::of(request).await
}

#[fixture::test]
async fn requests_of_the_page_succeed() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    assert!(root().join("docs/http.md").is_file());
    let of_page = blocks().into_iter().filter(|block| block.place.starts_with("docs/http.md"));
    let commands = of_page.filter(|block| block.code.trim_start().starts_with("curl"));

    let mut tags = Vec::new();
    for block in commands {
        let answer = send(&api, &block.code).await;
        assert_eq!(answer.status, 201, "{}: {answer:?}", block.place);
        tags.push(answer.header("etag").to_owned());
    }

    assert_eq!(tags, ["\"1\"", "\"2\""]);
    let last = api.get("/v1/aggregates/order/o-1/events/last").await;
    assert_eq!(last.body["requestId"], "pay-o-1");
    api.stop().await;
}
