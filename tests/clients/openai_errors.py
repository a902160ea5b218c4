"""The official `openai` client gets the error that its user needs to see, and the gateway goes on."""

import openai

from gateway import KEYS, URL, expect, run


def client(key):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0, timeout=120)


ACME = client(KEYS["acme"])
MODEL = ACME.models.list().data[0].id
HELLO = [{"role": "user", "content": "Hello!"}]


def refused(kind, status, code, named=None, who=ACME, **options):
    """Asks, and expects this error: class, status, code, and the setting that it names."""
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **options}
    extra = {name: asked.pop(name) for name in list(asked) if name in ("unknown_setting", "top_k", "min_p")}
    try:
        who.chat.completions.create(**asked, extra_body=extra)
    except kind as error:
        what = f"{options}: {error.status_code} {error.body}"
        expect(error.status_code == status, what)
        expect(error.code == code, f"code {code} expected, {what}")
        expect(error.body["message"] and error.body["type"], f"a message and a type, {what}")
        expect(named is None or named in str(error.body["param"]), f"it names {named}, {what}")
        expect(not any(key in str(error.body) for key in KEYS.values()), "an error never repeats a key")
        return error
    raise AssertionError(f"{options} was answered")


def bad(code, named=None, **options):
    return refused(openai.BadRequestError, 400, code, named, **options)


def a_wrong_key_is_not_let_in():
    genuine = KEYS["acme"]
    changed = genuine[:-1] + ("A" if genuine[-1] != "A" else "B")
    for key in ("bk_nonsense", "sk-proj-0123456789", changed, genuine + "0", genuine.lower()):
        refused(openai.AuthenticationError, 401, "invalid_api_key", who=client(key))


def an_unknown_model_is_named_so():
    refused(openai.NotFoundError, 404, "model_not_found", "model", model="gpt-4o")


def what_is_not_supported_is_refused_by_name():
    bad("unsupported_parameter", "n", n=2)
    bad("unsupported_parameter", "logprobs", logprobs=True)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    bad("unsupported_parameter", "tools", tools=[tool])
    bad("unknown_parameter", "unknown_setting", unknown_setting=1)


def wrong_types_and_numbers_are_refused_by_name():
    bad("invalid_type", "temperature", temperature="warm")
    bad("below_min_value", "temperature", temperature=-1)
    bad("above_max_value", "temperature", temperature=1e9)
    bad("below_min_value", "max_tokens", max_tokens=-5)
    bad("invalid_type", "max_tokens", max_tokens=1.5)
    bad("above_max_value", "top_p", top_p=2)
    bad("invalid_type", "stop", stop=[1])
    bad("invalid_type", "stream", stream="yes")


def conversations_that_are_none_are_refused():
    bad("empty_value", "messages", messages=[])
    bad("invalid_value", "messages[0].role", messages=[{"role": "wizard", "content": "hi"}])
    bad("missing_required_parameter", "messages[0].content", messages=[{"role": "user"}])
    bad("invalid_type", "messages[0].content", messages=[{"role": "user", "content": 5}])


def too_much_is_refused():
    bad("array_above_max_length", "stop", stop=[f"stop {number}" for number in range(10_000)])
    bad("context_length_exceeded", messages=[{"role": "user", "content": "word " * 20_000}])
    bad("context_length_exceeded", max_tokens=1_000_000)
    refused(openai.APIStatusError, 413, "body_too_large", messages=[{"role": "user", "content": "x" * 10_000_000}])


def an_error_before_a_stream_is_an_error_and_no_stream():
    bad("below_min_value", "temperature", temperature=-1, stream=True)


def afterwards_the_gateway_answers_as_before():
    answer = ACME.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
    expect(answer.choices[0].message.content, "there is an answer")


run([
    a_wrong_key_is_not_let_in,
    an_unknown_model_is_named_so,
    what_is_not_supported_is_refused_by_name,
    wrong_types_and_numbers_are_refused_by_name,
    conversations_that_are_none_are_refused,
    too_much_is_refused,
    an_error_before_a_stream_is_an_error_and_no_stream,
    afterwards_the_gateway_answers_as_before,
])
