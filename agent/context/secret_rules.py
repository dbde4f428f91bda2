"""The rules for secrets.

They consist of prefixes of tokens, names of secret values, shapes of values, and harmless exceptions.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

# Prefixes of providers' tokens, in lower case. The library examines lines that contain one.
_BEGINNINGS = """
    absk age-secret-key-1 ak_ akia aiza api_org_ apify_api_ asia atatt3 atbb atctt3 azdo bb_live_ bedrock-api-key- bkaa_
    bkaj_ bkar_ bkat_ bkcqt_ bkct_ bkjat_ bkpat_ bkps_ bkpt_ bkrt_ bktr_ bktx_ bkua_ bkur_ cfat_ cflt cfut_ cio clojars_
    csk- dapi dckr_oat_ dckr_pat_ ddapp_ doo_v1_ dop_v1_ dor_v1_ dp.audit. dp.ct. dp.pt. dp.sa. dp.said. dp.scim. dp.st.
    dt0 dtn_ e2b_ eaaa eyj fc- flyv1 fm1a_ fm1r_ fm2_ fo1_ fw_ gho_ ghp_ ghr_ ghs_ ghu_ github_pat_ glagent- glc_ glcbt-
    gldt- glffct- glft- glimt- gloas- glpat- glptt- glrt- glrtr- glsa_ glsoat- glwt- gocspx- gr1348941 gsk_ hcaik_
    hcbik_ hf_ hrku- hvb. hvr. hvs. key- lin_api_ lin_oauth_ lsv2_ napi_ nfb_ nfc_ nfo_ nfp_ nfu_ npm_ nrak- ntn_ nvapi-
    oak_ ops_ ory_ac_ ory_at_ ory_rt_ ory_st_ pcsk_ pdl_ phs_ phx_ pk-helicone- pmak- pmat- polar_ pplx- pscale_tkn_ pul-
    pylf_ pypi- r8_ re_ rk_live_ rpa_ rubygems_ sb_secret_ sbp_ secret_ sg. sgp_ shpat_ shpca_ shppa_ shpss_ signkey-
    sk- sk. sk_ sntrys_ sntryu_ sq0atp- sq0csb- sq0csp- sqa_ sqp_ squ_ tgp_v1_ tr_dev_ tr_pat_ tr_preview_ tr_prod_
    tr_stg_ tvly- uak_ unkey_ vca_ vci_ vcp_ vcr_ wandb_v1_ whsec_ xaat- xai- xapp- xapt- xau_ xoxa- xoxb- xoxe- xoxe.
    xoxo- xoxp- xoxr- xoxs- xwfp- ya29. 4b1d
"""
# Strings inside other tokens.
_INSIDE = ".atlasv1. :aa :apa91b -us hooks.slack.com/services/ q~"

# Parts of names that are assigned secret values, in lower case.
PASSWORDS = ("passphrase", "passw", "pwd")
_NAMES = """
    access-key access_key accesskey account-key account_key accountkey api-key api_key apikey auth-key auth_key authkey
    credential encryption-key encryption_key encryptionkey license-key license_key licensekey master-key master_key
    masterkey private-key private_key privatekey secret shared-key shared_key sharedkey signing-key signing_key
    signingkey token
"""

# Examples from the specifications of OAuth (RFC 5849, 6749, 6750) and otpauth URLs, which manuals and tests
# repeat.
_EXAMPLES = """
    2YotnFZFEjr1zCsicMWpAA 7Fjfp0ZBr1KtDRbnfVdmIw SplxlOBeZQQYbYS6WxSbIA dpf43f3p2l4k3l03 h480djs93hd8
    hdhd0244k9j7ao03 hfdp7dh39dks9884 hh5s93j4hdidpola kd94hf93k423kf44 kkk9d7dh3k39sjv7 mF_9.B5f-4.1JqM
    JBSWY3DPEHPK3PXP nnch734d00sl2jdk pfkkdhi9sl3r4s00 tGzv3JOkF0XG5Qx2TlKWIA
"""

# Token formats that the library lacks, in the library's rule language.
RULESET = "ruleset-revision: 1\n" + "".join(
    f'detector: {name}\nspecificity: contextual\nprefix: "{prefix}"\nalphabet: {alphabet}\nrun: {run}\nvalidator: none\n'
    for name, prefix, alphabet, run in (
        ("age-secret-key", "AGE-SECRET-KEY-1", "upper-alnum", "exact 58"),
        ("google-oauth-token", "ya29.", "alnum-dash", "at-least 60"),
        ("planetscale-token", "pscale_tkn_", "alnum-dash", "at-least 32"),
        ("slack-webhook", "https://hooks.slack.com/services/", "base64-body", "at-least 40"),
    )
)

# Kinds by prefix of the library's type name; the first match counts.
_KINDS = (
    ("anthropic_", "anthropic-key"),
    ("authorization_", "authorization"),
    ("aws_access_key_id", "aws-access-key"),
    ("aws_", "aws-secret-key"),
    ("azure_", "azure-key"),
    ("bearer_", "authorization"),
    ("connection_", "url-password"),
    ("firebase_", "google-key"),
    ("github_", "github-token"),
    ("gitlab_", "gitlab-token"),
    ("google", "google-key"),
    ("huggingface_", "huggingface-token"),
    ("jwt", "jwt"),
    ("microsoft_", "azure-key"),
    ("npm_", "npm-token"),
    ("openai_", "openai-key"),
    ("pypi_", "pypi-token"),
    ("sendgrid_", "sendgrid-key"),
    ("slack", "slack-token"),
    ("stripe_", "stripe-key"),
    ("twilio_", "twilio-key"),
    ("", "api-token"),
)
KINDS = frozenset(kind for _, kind in _KINDS) | {"password", "private-key", "secret"}
"""All kinds that a marker can name."""


def kind_of(found: str) -> str:
    """Return the kind for the library's type name `found`."""
    return next(kind for beginning, kind in _KINDS if found.startswith(beginning))


ANCHORS = {
    **dict.fromkeys(_BEGINNINGS.split(), "beginning"),
    **dict.fromkeys(_INSIDE.split(), "inside"),
    **dict.fromkeys((*_NAMES.split(), *PASSWORDS), "name"),
    "basic ": "authorization",
    "bearer ": "authorization",
    "://": "url",
    "private key": "private key",
}
"""What may begin a secret, in lower case, and its group."""
GROUPS = tuple(ANCHORS.values())

# Printable ASCII without quotes, angle brackets, braces, commas, semicolons and backslashes.
_BARE = rb"[!#-&(-+\--:=?-\[\]^_a-z|~]"
_HEADER = rb"[A-Z][\w-]{1,20}+:[ ][^\n\\]{0,99}+"  # as in "Proc-Type: 4,ENCRYPTED"

# Every expression takes time proportional to the few hundred bytes that it examines, whatever they are.

# After the prefix of a token: enough characters, and the first ones not only lower case letters.
TOKEN = re.compile(rb"(?=[a-z_./+=~:|-]{0,48}+[A-Z0-9])[\w./+=~:|-]{12}")
# After a part of a name: the rest of the name, an assignment in some language, a value with or
# without quotes.
VALUE = re.compile(
    rb"""
    (?P<name>[\w.-]{0,40}+) (?![\w.-]) (?: \\?["'`] | [\])] ){0,3}+ [ \t]{0,16}+
    (?: :[ \t]{0,4}[\w.&'<>|?*\[\], ]{1,48}?= | [=!]={1,2} | [:=]?[=:] | => | [,(>] | value= )?
    [ \t]{0,16}+ (?: \(?\r?\n[ \t]{1,40}+ )?+
    (?: (?: [bru@]{0,2} | \\ )
        (?: "([^"\s\\]{12,1024}+)\\?" | '([^'\s\\]{12,1024}+)\\?' | `([^`\s\\]{12,1024}+)\\?` )
      | (?<=[\s=:>,("'`]) (?![=:>,(] | [\w.]{0,99}+[(\[]) (?P<bare>"""
    + _BARE
    + rb"""{16,256}+) )
    """,
    re.VERBOSE | re.IGNORECASE,
)
REST = re.compile(_BARE + rb"*+")
# What follows a value in a URL; and the characters of an unquoted value that could be an expression.
PARAMETER = re.compile(rb"[?&][\w-]{1,32}=")
WORD = re.compile(rb"[\w+/=.~:-]*+")
HARMLESS_START = re.compile(rb"(?:continuation|csrf|cursor|next|page|sync|xsrf)[-_]?\Z", re.IGNORECASE)
HARMLESS_END = re.compile(
    rb"(?:checksum|digest|endpoint|file|fingerprint|format|hash|header|id|name|path|prefix|type|ur[il])s?\Z",
    re.IGNORECASE,
)
WEB_TOKEN = re.compile(rb"eyJ[\w-]*+\.eyJ[\w-]*+\.")
AUTHORIZATION = re.compile(rb"[ \t]{0,16}+([\w./+=~-]{12,256}+)")
USERINFO = re.compile(rb"[\w.%+~-]{0,64}+:([^\s/@\"'`<>]{12,256}+)@")
# Changes between lower case, upper case, digits and signs; a capital at the start of a word does not
# count.
CHANGE = re.compile(
    rb"[a-z](?=[0-9!@#$%^&*]|[A-Z](?![a-z]{2}))|[A-Z](?=[0-9!@#$%^&*])|[0-9](?=[A-Za-z!@#$%^&*])"
    rb"|[!@#$%^&*](?=[A-Za-z0-9])"
)
PLACEHOLDER = re.compile(
    rb"change[-_ ]?me|deadbeef|dummy|example|insert|not[-_]?(?:a[-_]?)?real|placeholder|redacted|sample|your[-_]"
    rb"|(.)\1{5}|01234567|12345678|98765432|abcdefgh"
    rb"|(?:^|[-_.])(?:bar|demo|fake|foo|mock|test)(?:[-_.]|$)"
    # an invented password; the code between two string literals
    rb"|\A.{0,8}(?:p[a@4][s$5]{2}|s[e3]cr[e3]t).{0,8}\Z"
    rb"|\A[+,);\]}:.&|?].*[({;]"
    rb"|" + b"|".join(re.escape(known).encode() for known in _EXAMPLES.split()),
    re.IGNORECASE,
)
ARMOR = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----")
# The lines of a key in a separate file, in source code or in data.
BODY = re.compile(rb"(?:\\[nrt]|" + _HEADER + rb"|[A-Za-z0-9+/=]{4,}+|[\s\"'`,+\\|#*>;/.()]|b(?=[\"']))*+")
PIECE = re.compile(rb"\\[nrt]|" + _HEADER + rb"|([A-Za-z0-9+/=]{4,}+)")
ESCAPE = re.compile(r"\\[nrt]")


@functools.cache
def anchors() -> BytesAhoCorasick:
    """Return the search for all anchors; their order is that of `ANCHORS`. The first call takes a few milliseconds."""
    from ahocorasick_rs import BytesAhoCorasick, Implementation

    return BytesAhoCorasick([anchor.encode() for anchor in ANCHORS], implementation=Implementation.DFA)
