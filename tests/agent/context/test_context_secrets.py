"""Test the detection of secrets; tests make them from parts with a fixed seed, so that no scanner reports this file."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import random
import re
import string
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from m3agent.agent.context.rules import SECRETS
from m3agent.agent.context.secret_rules import KINDS, anchors
from m3agent.agent.context.secrets import NOTATION_SECRETS, Finding, redact, suspicious
from tests.conftest import later

ALNUM = string.ascii_letters + string.digits
DIGITS = string.digits
HEX = string.digits + "abcdef"
UPPER = string.ascii_uppercase + string.digits
BASE32 = string.ascii_uppercase + "234567"
BASE64 = ALNUM + "+/"
BASE64URL = ALNUM + "-_"
DJANGO = string.ascii_lowercase + string.digits + "!@#$%^&*(-_=+)"

Made = Callable[[random.Random], str]


def some(rng: random.Random, length: int, alphabet: str = ALNUM) -> str:
    return "".join(rng.choices(alphabet, k=length))


def checked(rng: random.Random, prefix: str) -> str:
    """Return a token in GitHub's format: 30 characters and their CRC32 in base 62."""
    body, alphabet = some(rng, 30), DIGITS + string.ascii_uppercase + string.ascii_lowercase
    rest, check = zlib.crc32(body.encode()), ""
    for _ in range(6):
        rest, digit = divmod(rest, 62)
        check = alphabet[digit] + check
    return prefix + body + check


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def web_token(rng: random.Random, **claims: object) -> str:
    header = unpadded(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    return f"{header}.{unpadded(json.dumps(claims).encode())}.{some(rng, 43, BASE64URL)}"


def private_key(rng: random.Random, label: str = "RSA PRIVATE KEY", lines: int = 12) -> str:
    body = [some(rng, 64, BASE64) for _ in range(lines)]
    return "\n".join(
        (f"-----BEGIN {label}-----", *body, some(rng, 22, BASE64) + "==", f"-----END {label}-----")
    )


TOKENS: dict[str, tuple[str, Made]] = {
    "AWS key id": ("aws-access-key", lambda r: "AK" + "IA" + some(r, 16, BASE32)),
    "AWS temporary key id": ("aws-access-key", lambda r: "AS" + "IA" + some(r, 16, BASE32)),
    "GitHub personal": ("github-token", lambda r: checked(r, "ghp" + "_")),
    "GitHub OAuth": ("github-token", lambda r: checked(r, "gho" + "_")),
    "GitHub app": ("github-token", lambda r: checked(r, "ghs" + "_")),
    "GitHub without checksum": ("github-token", lambda r: "ghp" + "_" + some(r, 36)),
    "GitHub fine-grained": ("github-token", lambda r: "github" + "_pat_" + some(r, 22) + "_" + some(r, 59)),
    "GitLab personal": ("gitlab-token", lambda r: "gl" + "pat-" + some(r, 20)),
    "GitLab deploy": ("gitlab-token", lambda r: "gl" + "dt-" + some(r, 20)),
    "GitLab runner": ("gitlab-token", lambda r: "gl" + "rt-" + some(r, 20)),
    "Slack bot": (
        "slack-token",
        lambda r: "xo" + f"xb-{some(r, 12, DIGITS)}-{some(r, 13, DIGITS)}-{some(r, 24)}",
    ),
    "Slack app": (
        "slack-token",
        lambda r: "xa" + f"pp-1-A{some(r, 10, UPPER)}-{some(r, 13, DIGITS)}-{some(r, 64, HEX)}",
    ),
    "Slack webhook": (
        "slack-token",
        lambda r: (
            "https://hooks.sl" + f"ack.com/services/T{some(r, 8, UPPER)}/B{some(r, 10, UPPER)}/{some(r, 24)}"
        ),
    ),
    "Stripe live": ("stripe-key", lambda r: "sk" + "_live_" + some(r, 24)),
    "Stripe live, long": ("stripe-key", lambda r: "sk" + "_live_51" + some(r, 97)),
    "Stripe restricted": ("stripe-key", lambda r: "rk" + "_live_" + some(r, 24)),
    "Stripe webhook": ("stripe-key", lambda r: "wh" + "sec_" + some(r, 32)),
    "Google API": ("google-key", lambda r: "AI" + "za" + some(r, 35, BASE64URL[:-2])),
    "Google client": ("google-key", lambda r: "GOC" + "SPX-" + some(r, 28)),
    "Google OAuth": ("google-key", lambda r: "ya" + "29." + some(r, 100)),
    "OpenAI": ("openai-key", lambda r: "s" + "k-" + some(r, 20) + "T3Blbk" + "FJ" + some(r, 20)),
    "OpenAI project": ("openai-key", lambda r: "s" + "k-proj-" + some(r, 74) + "T3Blbk" + "FJ" + some(r, 74)),
    "Anthropic": ("anthropic-key", lambda r: "s" + "k-ant-api03-" + some(r, 93) + "AA"),
    "Hugging Face": ("huggingface-token", lambda r: "h" + "f_" + some(r, 34, string.ascii_letters)),
    "npm": ("npm-token", lambda r: checked(r, "np" + "m_")),
    "PyPI": ("pypi-token", lambda r: "py" + "pi-AgEIcHlwaS5vcmc" + some(r, 150)),
    "SendGrid": ("sendgrid-key", lambda r: "S" + f"G.{some(r, 22)}.{some(r, 43)}"),
    "DigitalOcean": ("api-token", lambda r: "do" + "p_v1_" + some(r, 64, HEX)),
    "Docker": ("api-token", lambda r: "dck" + "r_pat_" + some(r, 27)),
    "Databricks": ("api-token", lambda r: "da" + "pi" + some(r, 32, HEX)),
    "Shopify": ("api-token", lambda r: "shp" + "at_" + some(r, 32, HEX)),
    "Linear": ("api-token", lambda r: "lin" + "_api_" + some(r, 40)),
    "New Relic": ("api-token", lambda r: "NR" + "AK-" + some(r, 27, UPPER)),
    "Sentry": ("api-token", lambda r: "sntr" + "yu_" + some(r, 64, HEX)),
    "Vault": ("api-token", lambda r: "hv" + "s." + some(r, 95)),
    "Terraform": ("api-token", lambda r: some(r, 14) + ".atlas" + "v1." + some(r, 67)),
    "Grafana": ("api-token", lambda r: "gl" + f"sa_{some(r, 32)}_{some(r, 8, HEX)}"),
    "RubyGems": ("api-token", lambda r: "ruby" + "gems_" + some(r, 48, HEX)),
    "Square": ("api-token", lambda r: "sq" + "0csp-" + some(r, 43)),
    "Groq": ("api-token", lambda r: "gs" + "k_" + some(r, 20) + "WGdyb" + "3FY" + some(r, 24)),
    "Replicate": ("api-token", lambda r: "r" + "8_" + some(r, 37)),
    "xAI": ("api-token", lambda r: "xa" + "i-" + some(r, 80)),
    "OpenRouter": ("api-token", lambda r: "s" + "k-or-v1-" + some(r, 64, HEX)),
    "Perplexity": ("api-token", lambda r: "pp" + "lx-" + some(r, 48)),
    "NVIDIA": ("api-token", lambda r: "nv" + "api-" + some(r, 64)),
    "Supabase": ("api-token", lambda r: "sb" + "p_" + some(r, 40, HEX)),
    "Telegram": ("api-token", lambda r: some(r, 10, "123456789") + ":A" + "A" + some(r, 33)),
    "age": ("api-token", lambda r: "AGE-" + "SECRET-KEY-1" + some(r, 58, UPPER)),
    "PlanetScale": ("api-token", lambda r: "pscale" + "_tkn_" + some(r, 43)),
    "JSON web token": (
        "jwt",
        lambda r: web_token(r, sub=some(r, 10), iat=1780000000, iss="https://login.corp.net"),
    ),
}
AROUND = {
    "Python": 'import os\n\nclient = Client("{}")\n',
    "YAML": "service:\n  - name: {}\n",
    "JSON": '{{\n  "value": "{}",\n  "n": 1\n}}\n',
    "JSON in a string": 'body = "{{\\"value\\":\\"{}\\"}}"\n',
    "manual": "Use `{}` to log in.\n",
    "at the end": "first line\n{}",
    "after an escape": 'text = "first line\\n{} and more"\n',
    "not ASCII": "# Schlüssel für 日本: «{}» 🔑\n",
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("token", TOKENS)
def test_tokens_are_found_by_their_format(token: str, around: str) -> None:
    kind, make = TOKENS[token]
    rng = random.Random(f"{around}: {token}")
    for _ in range(5):
        secret = make(rng)
        before, after = AROUND[around].format(secret), AROUND[around].format(f"<REDACTED:{kind}>")
        assert suspicious(before.encode())
        redacted = redact(before, "file")
        assert redacted.text == after
        assert redacted.found == (Finding(kind, before[: before.index(secret)].count("\n") + 1),)
        assert redact(after, "file") == (after, ())


ASSIGNMENTS = {
    "Python": 'SECRET_KEY = "{}"\n',
    "Python, bytes": "app.secret_key = b'{}'\n",
    "Python, annotated": '    token: Optional[str] = "{}"\n',
    "Python, next line": 'SECRET_KEY = (\n    "{}"\n)\n',
    "Python, next line of CRLF": 'SECRET_KEY = (\r\n    "{}"\r\n)\r\n',
    "keyword": 'connect(host="db", api_key="{}", port=1)\n',
    "item": 'app.config["SECRET_KEY"] = "{}"\n',
    "comparison": 'assert api_token == "{}"\n',
    "call": 'client.set_token("{}")\n',
    "default": 'os.environ.get("API_TOKEN", "{}")\n',
    "JavaScript": "const accessToken = `{}`;\n",
    "TypeScript": "const apiToken: string = '{}';\n",
    "Go": 'apiSecret := "{}"\n',
    "Rust": 'const API_KEY: &\'static str = "{}";\n',
    "C": '#define API_KEY "{}"\n',
    "Ruby": "  :client_secret => '{}',\n",
    "XML attribute": '<add key="ApiKey" value="{}" />\n',
    "JSON": '{{"client_secret": "{}"}}\n',
    "JSON in a string": 'text = "{{\\"secret\\": \\"{}\\"}}"\n',
    "YAML": "client:\n  auth_token: {}\n",
    "shell": "export API_TOKEN={}\n",
    "Dockerfile": "ENV API_KEY {}\n",
    "command line": "tool --token={} --verbose\n",
    "command line, two words": "tool --token {} --verbose\n",
    "header": 'curl -H "X-Api-Key: {}" url\n',
    "URL": "get https://api/v1?x=1&api_key={}&page=1\n",
    "INI": "[remote]\nsigning-key = {}\n",
}
VALUES: dict[str, Made] = {
    "letters and digits": lambda r: some(r, 40),
    "hexadecimal": lambda r: some(r, 64, HEX),
    "base64": lambda r: base64.b64encode(r.randbytes(33)).decode(),
    "short": lambda r: "q7W" + some(r, 18) + "9xK2m",
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_random_values_are_found_by_their_names(assignment: str, value: str) -> None:
    rng = random.Random(f"{assignment} {value}")
    form = ASSIGNMENTS[assignment]
    for _ in range(5):
        before, after = form.format(VALUES[value](rng)), form.format("<REDACTED:secret>")
        assert suspicious(before.encode())
        redacted = redact(before, "file")
        assert redacted.text == after
        assert [found.kind for found in redacted.found] == ["secret"]
        assert redact(after, "file") == (after, ())


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ('password = "{}"\n', "password"),
        ("db.password={}\n", "password"),
        ("define('DB_PASSWORD', '{}');\n", "password"),
        ('"Server=db;User=sa;Pwd={};Encrypt=yes"\n', "password"),
        ("machine host login user password {}\n", "password"),
        ("<password>{}</password>\n", "password"),
        ("postgres://app:{}@db.corp.net:5432/app\n", "url-password"),
        ("git clone https://deploy:{}@git.corp.net/x.git\n", "url-password"),
        ('headers = {{"Authorization": "Bearer {}"}}\n', "authorization"),
        ('AWS_SECRET_ACCESS_KEY = "{}"\n', "aws-secret-key"),
    ],
)
def test_the_kind_says_what_it_was(form: str, kind: str) -> None:
    rng = random.Random(form)
    before, after = form.format("x9A" + some(rng, 37)), form.format(f"<REDACTED:{kind}>")
    assert suspicious(before.encode())
    assert redact(before, "file") == (after, (Finding(kind, 1),))


def test_keys_of_django_are_found() -> None:
    rng = random.Random(0)
    for _ in range(50):
        before = f"DEBUG = True\nSECRET_KEY = 'django-insecure-{some(rng, 50, DJANGO)}'\n"
        assert redact(before, "settings.py").text == "DEBUG = True\nSECRET_KEY = '<REDACTED:secret>'\n"


def test_a_password_in_basic_authorization_is_judged_decoded() -> None:
    rng = random.Random(1)

    def header(credentials: str) -> str:
        return f'"Authorization: Basic {base64.b64encode(credentials.encode()).decode()}"\n'

    hidden = '"Authorization: Basic <REDACTED:authorization>"\n'
    assert redact(header(f"admin:k3N{some(rng, 20)}"), "file").text == hidden
    for known in ("Aladdin:open sesame", "user:password", "username:passw0rd", "garbage"):
        assert redact(header(known), "file") == (header(known), ())


PLACEHOLDERS = [
    'password = "secret"',
    'password="hunter2"',
    'password="correct-horse-battery-staple"',
    'AWS_KEY = "AKIA' + 'IOSFODNN7EXAMPLE"',
    'aws_secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCY' + 'EXAMPLEKEY"',
    "http://user:pass@example.com",
    "https://user1:password1@proxy:8080",
    "'p%40ss%2Fword%3F%23__' == url.password",
    'api_key = "your-api-key-here"',
    'api_key = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"',
    'token = "0000000000000000000000000000000000000000"',
    'token = "ghp_' + 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"',
    'token = "ghp_' + 'abcdefghijklmnopqrstuvwxyz0123456789"',
    'token = "xoxb-' + 'not-a-real-token-1A2b3C4d"',
    'token: "sk-ant-api03-' + '..."',
    'SECRET_KEY = "change-me-please-change-me-now"',
    'SECRET_KEY = os.environ["SECRET_KEY"]',
    "password = get_password_from_keyring(user)",
    "secret = hashlib.sha256(b'abc').hexdigest()",
    'api_key = "${API_KEY}"',
    'api_key = "{{ api_key }}"',
    'password = "<password>"',
    "secretKeyRef: my-application-secret-name",
    'secret_name = "projects/foo/secrets/bar/versions/latest"',
    'monkey_token = "test_token_value_for_unit_tests"',
    "token = TokenType.IDENTIFIER_WITH_LONG_NAME",
    "value_token := s.accept(TokenType.STRING)",
    'AUTH_PASSWORD_VALIDATORS = "django.contrib.auth.password_validation.MinimumLengthValidator"',
    "password: SecretStr = Field(default=SecretStr('x'))",
    "start_token = '= slowest test durations ='",
    "token_url: https://login.corp.net/oauth2/v2.0/token",
    "class ApiKeyAuthenticationMiddlewareFactoryProvider: ...",
    "if '-----BEGIN PRIVATE KEY-----' in text and '-----END PRIVATE KEY-----' in text:",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA...\n-----END RSA PRIVATE KEY-----",
    "PRIVATE_KEY_CLS = EllipticCurvePrivateKeyWithSerialization",
    'throw"wrong hex password: "+h.hex}g=h.hex1}if(h.utf8!==undefined){g=utf8tohex(h.utf8)}throw"x"',
    "password: 's00pers3cret'",
    '"access_token":"2YotnFZFEjr1zCsicMWpAA",',
    "# nothing here is secret: Schlüssel, пароль, 暗号",
]


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_examples_and_placeholders_stay(text: str) -> None:
    assert redact(text + "\n", "file") == (text + "\n", ())


@pytest.mark.parametrize(
    "form",
    [
        'commit = "{}"\n',
        "checksum: {}\n",
        'etag = "{}"\n',
        'password_hash = "{}"\n',
        'token_id = "{}"\n',
        'csrf_token = "{}"\n',
        'next_page_token = "{}"\n',
        'public_key = "{}"\n',
        "see https://host/commit/{}\n",
    ],
)
def test_random_looking_text_without_a_name_stays(form: str) -> None:
    rng = random.Random(form)
    for alphabet in (HEX, ALNUM):
        text = form.format(some(rng, 40, alphabet))
        assert redact(text, "file") == (text, ())


def test_without_quotes_only_what_is_no_expression_is_found_in_code() -> None:
    text = "token=a1?b2[c3]:d4*e5&f6|g7+h8i9"
    assert redact(text, "dist/bundle.js") == (text, ())
    assert redact(text, "deploy/.env").text == "token=<REDACTED:secret>"
    word = f"# tool --token={some(random.Random(10), 40)}"
    assert redact(word, "src/main.py").text == "# tool --token=<REDACTED:secret>"


def test_test_keys_stay() -> None:
    text = "sk" + "_test_" + some(random.Random(2), 24)
    assert redact(f'stripe.api_key = "{text}"\n', "file").found == ()


def test_web_tokens_that_open_nothing_stay() -> None:
    rng = random.Random(3)
    for claims in (
        {"some": "payload"},
        {"sub": "1234567890", "name": "John Doe"},
        {"iss": "https://x", "exp": 1600000000},
    ):
        for name in ("encoded", "token"):
            text = f'{name} = "{web_token(rng, **claims)}"\n'
            assert redact(text, "file") == (text, ())
    assert redact(f'encoded = "{web_token(rng, iss="x", exp=4000000000)}"\n', "file").found == (
        Finding("jwt", 1),
    )


KEY_LABELS = [
    "PRIVATE KEY",
    "RSA PRIVATE KEY",
    "EC PRIVATE KEY",
    "OPENSSH PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
]


@pytest.mark.parametrize("label", [*KEY_LABELS, "PGP PRIVATE KEY BLOCK"])
@pytest.mark.parametrize(
    "form",
    [
        lambda key: key + "\n",
        lambda key: 'KEY = """' + key + '"""\n',
        lambda key: "key: |\n" + "".join(f"  {line}\n" for line in key.split("\n")) + "next: 1\n",
        lambda key: 'key = "' + key.replace("\n", "\\n") + '"\n',
        lambda key: "key = (\n" + "".join(f'    b"{line}\\n"\n' for line in key.split("\n")) + ")\n",
        lambda key: json.dumps({"key": key}) + "\n",
        lambda key: key.replace("\n", "\r\n") + "\r\n",
    ],
    ids=["file", "string", "YAML", "escapes", "bytes", "JSON", "CRLF"],
)
def test_private_keys_keep_their_lines(form: Callable[[str], str], label: str) -> None:
    key = private_key(random.Random(label), label)
    before = form(key)
    assert suspicious(before.encode())
    redacted = redact(before, "file")
    body = key.split("\n")[1:-1]
    marked = "\n".join((key.split("\n")[0], *["<REDACTED:private-key>"] * len(body), key.split("\n")[-1]))
    assert redacted.text == form(marked)
    begins = before[: before.index("-----BEGIN")].count("\n") + 1
    assert redacted.found == (Finding("private-key", begins),)
    assert redact(redacted.text, "file") == (redacted.text, ())


def test_headers_of_a_private_key_and_what_follows_one_without_end_stay() -> None:
    first, *lines = private_key(random.Random(4)).split("\n")
    headers = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF0123456789ABCDEF\n\n"
    text = "\n".join((first, headers + lines[0], lines[1], "", "words that stand after the key", ""))
    marker = "<REDACTED:private-key>"
    assert (
        redact(text, "file").text
        == f"{first}\n{headers}{marker}\n{marker}\n\nwords that stand after the key\n"
    )


def test_findings_are_in_order_with_their_lines() -> None:
    rng = random.Random(5)
    token = checked(rng, "ghp" + "_")
    key = private_key(rng, lines=3)
    text = f'a = 1\ntoken = "{token}"\n{key}\nb = "{token}" + "{token}"\npassword = "Zx8{some(rng, 20)}"\n'
    redacted = redact(text, "file")
    assert redacted.found == (
        Finding("github-token", 2),
        Finding("private-key", 3),
        Finding("github-token", 9),
        Finding("github-token", 9),
        Finding("password", 10),
    )
    lines = redacted.text.split("\n")
    assert lines[1] == 'token = "<REDACTED:github-token>"'
    assert lines[8] == 'b = "<REDACTED:github-token>" + "<REDACTED:github-token>"'
    assert lines[9] == 'password = "<REDACTED:password>"'


def test_long_lines_are_looked_at_in_windows() -> None:
    rng = random.Random(6)
    tokens = [checked(rng, "ghp" + "_") for _ in range(200)]
    between = [" é" * rng.randrange(1, 3000) for _ in tokens]
    text = "".join(f"{space} {token}" for space, token in zip(between, tokens, strict=True))
    redacted = redact(text, "bundle.js")
    assert redacted.text == "".join(f"{space} <REDACTED:github-token>" for space in between)
    assert redacted.found == (Finding("github-token", 1),) * 200


@pytest.mark.parametrize(
    "part",
    [
        "ey" + "J",  # the library takes minutes if it gets the whole text at once
        "token=",
        later("token]("),
        later("&api_key="),
        later("sk" + "-"),
        later("://u:"),
        "-----BEGIN PRIVATE KEY-----",
        later('"password": "'),
        later("a1B2"),
        "é",
    ],
)
def test_a_megabyte_of_one_thing_is_nothing_special(part: str) -> None:
    text = part * (1024 * 1024 // len(part.encode()))
    assert redact(text, "file") == (text, ())


@pytest.mark.slow
def test_tens_of_thousands_of_secrets_in_one_line_are_all_replaced() -> None:
    secret = checked(random.Random(7), "ghp" + "_")
    redacted = redact(f"{secret} " * 25_000, "file")
    assert redacted.text == "<REDACTED:github-token> " * 25_000
    assert len(redacted.found) == 25_000


def test_other_encodings_are_never_passed_over() -> None:
    text = f"clé = 1\ntoken = {checked(random.Random(8), 'ghp' + '_')}\n"
    assert redact(text, "file").found
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1", "cp1252"):
        assert suspicious(text.encode(encoding))


# Parts of real files, cut so that they occur next to each other in every combination.
WORDS = "secret token password api_key apiKey API-KEY passwd pwd auth_key credentials csrf_ _hash Basic Bearer None"
SIGNS = "= : := => ( ) [ ] , ' \" ` \\ \\n :// @ & ? { } # é 日 \ufffd <REDACTED:secret> example a.b.c"
SPACES = ["\n", "\n    ", "\t", " "]
ARMOR = ["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "-----BEGIN ", "PRIVATE KEY", "-----"]
PARTS = st.one_of(
    st.sampled_from([*WORDS.split(), *SIGNS.split(), *SPACES, *ARMOR]),
    st.builds(
        lambda seed, token: TOKENS[token][1](random.Random(seed)),
        st.integers(0, 9),
        st.sampled_from([*TOKENS]),
    ),
    st.builds(
        lambda seed, length, alphabet: some(random.Random(seed), length, alphabet),
        st.integers(0, 99),
        st.integers(1, 400),
        st.sampled_from([ALNUM, HEX, BASE64, DJANGO, string.printable]),
    ),
    st.text(max_size=6),
)


@settings(max_examples=100)
@given(st.lists(PARTS, max_size=14).map("".join))
@example("token=" + "a1B2" * 80)
@example('token="' + "é" * 10 + "a1B2c3D4e5F6" * 30 + '"')
def test_the_quick_look_agrees_with_redact_and_redact_with_itself(text: str) -> None:
    text = text.encode("utf-8", "replace").decode().replace("\r", "")
    redacted = redact(text, "file")
    for data in (text.encode(), text.replace("\n", "\r\n").encode()):
        assert suspicious(data) or not redacted.found
        in_code = redact(text, "source.py")
        assert suspicious(data) or not in_code.found
        assert redact(in_code.text, "source.py").text == in_code.text
    if not redacted.found:
        assert redacted.text == text
    assert redact(text, "another/file") == redacted
    assert redact(redacted.text, "file").text == redacted.text
    assert redacted.text.count("\n") == text.count("\n")
    assert {found.kind for found in redacted.found} <= KINDS
    assert list(redacted.found) == sorted(redacted.found, key=lambda found: found.line)
    # The text between the markers is that of the file, in order.
    position = 0
    for part in re.split(r"<REDACTED:[a-z-]+>", redacted.text):
        position = text.find(part, position)
        assert position >= 0
        position += len(part)


def test_every_kind_is_a_short_name() -> None:
    assert all(re.fullmatch(r"[a-z]+(?:-[a-z]+)*", kind) for kind in KINDS)
    assert {kind for kind, _ in TOKENS.values()} <= KINDS
    assert len(KINDS) < 30


def test_prompt_explains_the_markers_as_they_are() -> None:
    (marker,) = re.findall(r"<REDACTED:([a-z-]+)>", NOTATION_SECRETS)
    assert marker in KINDS


def test_the_version_is_that_of_the_library() -> None:
    assert SECRETS.endswith("+redact-secret-" + importlib.metadata.version("redact-secret"))


@pytest.mark.integration
def test_libraries_are_loaded_only_when_needed() -> None:
    program = """
import sys
from m3agent.agent.context import secrets
assert not {"redact_secret", "ahocorasick_rs"} & set(sys.modules)
assert not secrets.suspicious(b"x = 1" * 1000)
assert "redact_secret" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_threads_may_share_everything() -> None:
    rng = random.Random(9)
    texts = [f"x = 1\nkey = '{make(rng)}'\n" * 20 for _, make in TOKENS.values()]
    expected = [redact(text, "file") for text in texts]
    anchors.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(redact, texts * 4, ["file"] * len(texts) * 4)) == expected * 4
