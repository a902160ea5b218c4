"""The official `openai` client gets answers: whole and streamed, chat and text, two tenants at once."""

import concurrent.futures
import re
import time

import httpx
import openai

from gateway import KEYS, URL, expect, run

UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$")


def client(tenant, **options):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=KEYS[tenant], max_retries=0, timeout=120, **options)


ACME = client("acme")
MODEL = ACME.models.list().data[0].id


def greedy(prompt, tenant_client=ACME, **options):
    options = {"model": MODEL, "temperature": 0, "max_tokens": 24, **options}
    return tenant_client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **options)


def text(answer):
    return answer.choices[0].message.content


def the_model_is_listed_and_described():
    models = ACME.models.list().data
    expect(len(models) == 1 and models[0].object == "model", f"one model is served, not {len(models)}")
    expect(ACME.models.retrieve(MODEL).id == MODEL, "the listed model can be retrieved")


def an_answer_has_text_usage_and_a_reason_to_end():
    answer = greedy("What is the capital of France? Answer in one sentence.")
    expect(answer.object == "chat.completion" and answer.model == MODEL, "object and model are as asked")
    expect("Paris" in text(answer), f"the model knows Paris, it said {text(answer)!r}")
    expect(answer.choices[0].message.role == "assistant", "the assistant answers")
    expect(answer.system_fingerprint.startswith("fp_"), f"the model has a fingerprint: {answer.system_fingerprint!r}")
    expect(answer.choices[0].finish_reason in ("stop", "length"), "it ends for a reason")
    usage = answer.usage
    expect(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24, f"usage is counted: {usage}")
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"usage adds up: {usage}")


def a_stream_says_the_same_as_a_whole_answer():
    prompt = "Name three colours."
    whole = text(greedy(prompt))
    pieces, reasons, roles = [], [], []
    for chunk in greedy(prompt, stream=True):
        expect(chunk.object == "chat.completion.chunk", "chunks are chunks")
        delta = chunk.choices[0].delta
        roles.append(delta.role)
        pieces.append(delta.content or "")
        reasons.append(chunk.choices[0].finish_reason)
    expect("".join(pieces) == whole, f"streamed {''.join(pieces)!r}, whole {whole!r}")
    expect(roles[0] == "assistant", "the first chunk says who speaks")
    expect(reasons[-1] in ("stop", "length") and not any(reasons[:-1]), f"only the last chunk ends: {reasons}")
    expect(sum(1 for piece in pieces if piece) > 3, "the text came in pieces")


def a_stream_tells_usage_when_asked():
    chunks = list(greedy("Hello!", stream=True, stream_options={"include_usage": True}))
    last = chunks[-1]
    expect(last.choices == [] and last.usage is not None, "the last chunk has the usage and no choice")
    expect(all(chunk.usage is None for chunk in chunks[:-1]), "no other chunk has it")
    whole = greedy("Hello!").usage
    expect((last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens),
           f"as in the whole answer: {last.usage} and {whole}")


def token_limits_are_kept_under_both_names():
    for name in ("max_tokens", "max_completion_tokens"):
        options = {"max_tokens": openai.NOT_GIVEN, name: 5}
        answer = greedy("Tell me a long story.", **options)
        expect(answer.usage.completion_tokens == 5, f"{name}: {answer.usage}")
        expect(answer.choices[0].finish_reason == "length", f"{name}: {answer.choices[0].finish_reason}")


def a_stop_string_ends_the_answer_before_it():
    whole = text(greedy("Write one sentence about the sea."))
    words = [word for word in re.findall(r"[A-Za-z]{3,}", whole) if whole.find(word) > 8]
    expect(words, f"the answer has words to stop at: {whole!r}")
    stopped = greedy("Write one sentence about the sea.", stop=[words[0], "never said"])
    expect(text(stopped) == whole[: whole.find(words[0])], f"{text(stopped)!r} is {whole!r} up to {words[0]!r}")
    expect(stopped.choices[0].finish_reason == "stop", "it ended because of the stop string")


def a_seed_repeats_an_answer():
    sampled = dict(temperature=1.0, top_p=0.95, seed=7, user="somebody")
    first, second = (text(greedy("Invent a name for a boat.", **sampled)) for _ in range(2))
    expect(first == second, f"the same seed, {first!r} and {second!r}")
    others = {text(greedy("Invent a name for a boat.", **{**sampled, "seed": seed})) for seed in range(8, 14)}
    expect(others != {first}, "other seeds give other answers")


def earlier_turns_count():
    messages = [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "My cat is called Kepler. Please remember that."},
        {"role": "assistant", "content": "I will remember that your cat is called Kepler."},
        {"role": "user", "content": "What is my cat called?"},
    ]
    answer = ACME.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
    expect("Kepler" in text(answer), f"it said {text(answer)!r}")


def plain_completions_work_whole_and_streamed():
    ask = dict(model=MODEL, prompt="The first three letters of the alphabet are", temperature=0, max_tokens=12)
    whole = ACME.completions.create(**ask)
    expect(whole.object == "text_completion" and whole.choices[0].text, "there is text")
    streamed = "".join(chunk.choices[0].text for chunk in ACME.completions.create(**ask, stream=True) if chunk.choices)
    expect(streamed == whole.choices[0].text, f"streamed {streamed!r}, whole {whole.choices[0].text!r}")


def receipt(tenant, request):
    return httpx.get(f"{URL}/v1/isolation/receipts/{request}", headers={"Authorization": f"Bearer {KEYS[tenant]}"})


def every_answer_names_a_receipt_that_only_its_tenant_gets():
    raw = ACME.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi."}], max_tokens=4)
    request = raw.headers["x-isolation-id"]
    expect(UUID.match(request), f"{request!r} is a UUID of version 7")
    expect(f"/v1/isolation/receipts/{request}" in raw.headers["link"], f"Link: {raw.headers['link']}")
    deadline = time.monotonic() + 10
    while (answer := receipt("acme", request)).status_code == 202 and time.monotonic() < deadline:
        expect(int(answer.headers["retry-after"]) >= 1, "it says when to come back")
        time.sleep(0.05)
    expect(answer.status_code == 200, f"the receipt is handed out: {answer.status_code} {answer.text}")
    expect(answer.text.startswith("c2sp.org/tlog-proof@v1\n"), f"a proof, not {answer.text[:40]!r}")
    other = receipt("globex", request)
    never = receipt("globex", "01890000-0000-7000-8000-000000000000")
    expect(other.status_code == 404 and never.status_code == 404, f"{other.status_code}, {never.status_code}")
    expect(other.json() == never.json(), "another tenant cannot tell that the request exists")


def two_tenants_at_once_get_their_own_answers():
    clients = {tenant: client(tenant) for tenant in KEYS}
    prompts = {
        "acme": "Repeat exactly: the acme codeword is marzipan.",
        "globex": "Repeat exactly: the globex codeword is quartz.",
    }
    alone = {tenant: text(greedy(prompts[tenant], clients[tenant])) for tenant in KEYS}
    words = {"acme": "marzipan", "globex": "quartz"}
    expect(all(words[tenant] in alone[tenant] for tenant in KEYS), f"the model repeats its codeword: {alone}")

    def ask(number):
        tenant = ("acme", "globex")[number % 2]
        if number % 4 < 2:
            return tenant, text(greedy(prompts[tenant], clients[tenant]))
        stream = greedy(prompts[tenant], clients[tenant], stream=True)
        return tenant, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(16)))
    for tenant, answer in answers:
        expect(answer == alone[tenant], f"{tenant} got {answer!r} in company and {alone[tenant]!r} alone")


def a_stream_that_is_left_early_harms_nobody():
    for _ in range(3):
        leaving = client("globex")
        stream = greedy("Write a very long story.", leaving, stream=True, max_tokens=400)
        next(iter(stream))
        stream.close()
        leaving.close()
    expect(text(greedy("Say hello.")), "the gateway still answers")


def a_client_that_would_speak_http2_is_answered():
    with client("acme", http_client=openai.DefaultHttpxClient(http2=True)) as modern:
        expect(text(greedy("Say hello.", modern)), "there is an answer")


run([
    the_model_is_listed_and_described,
    an_answer_has_text_usage_and_a_reason_to_end,
    a_stream_says_the_same_as_a_whole_answer,
    a_stream_tells_usage_when_asked,
    token_limits_are_kept_under_both_names,
    a_stop_string_ends_the_answer_before_it,
    a_seed_repeats_an_answer,
    earlier_turns_count,
    plain_completions_work_whole_and_streamed,
    every_answer_names_a_receipt_that_only_its_tenant_gets,
    two_tenants_at_once_get_their_own_answers,
    a_stream_that_is_left_early_harms_nobody,
    a_client_that_would_speak_http2_is_answered,
])
