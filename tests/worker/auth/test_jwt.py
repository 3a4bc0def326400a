"""Which JWTs count. Every refusal differs from an accepted token in one thing."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from inference.trace import Trace
from tests.worker.issuer import HMAC_SECRET, Issuer, claims, sign
from worker.auth.jwt import DOCUMENT_BYTES_MAX, InvalidToken, Jwks, KeysUnavailable, Tokens, parse
from worker.auth.scope import USUAL, Scope
from worker.config import Config
from worker.lifecycle.supervisor import Supervisor

SECRET = OctKey.import_key(HMAC_SECRET)
BOUND = Config(jwt_issuer="https://issuer.test", jwt_audience="firsttoken")


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    await issuer.start()
    yield issuer
    await issuer.close()


@pytest.fixture
def by_secret() -> Tokens:
    return Tokens(replace(BOUND, jwt_secret=HMAC_SECRET))


@pytest.fixture
async def by_jwks(issuer: Issuer) -> AsyncIterator[Tokens]:
    tokens = Tokens(replace(BOUND, jwt_jwks_url=issuer.url))
    assert tokens.jwks is not None
    await tokens.jwks.start(Supervisor())
    yield tokens
    await tokens.jwks.close()


async def test_a_token_signed_with_the_secret_names_its_tenant(by_secret: Tokens) -> None:
    bearer = await by_secret.verify(sign(claims(), SECRET, "HS256"), Trace())
    assert (bearer.tenant, bearer.subject, bearer.scopes) == ("jwt:alice", "alice", USUAL)


async def test_tokens_signed_with_a_published_key_count(by_jwks: Tokens, issuer: Issuer) -> None:
    for key, algorithm in ((issuer.rsa, "RS256"), (issuer.ec, "ES256")):
        assert (await by_jwks.verify(sign(claims(), key, algorithm), Trace())).subject == "alice"
    assert issuer.requests == 1  # the keys are kept


@pytest.mark.parametrize(
    ("claim", "granted"),
    [
        ("openid email", USUAL),  # of other software
        ("operator admin chat", USUAL),
        (["firsttoken:admin"], USUAL),
        ("openid firsttoken:operator", USUAL | {Scope.OPS}),
        ("firsttoken:ops", {Scope.OPS}),
        ("firsttoken:chat firsttoken:admin", {Scope.CHAT, Scope.ADMIN}),
        ("firsttoken:chat firsttoken:operator", {Scope.CHAT, Scope.OPS}),
        ("firsttoken:chta", set()),  # who meant to name something gets nothing else
    ],
)
async def test_a_token_has_the_scopes_that_it_names_of_ours(
    by_secret: Tokens, claim: object, granted: set[Scope]
) -> None:
    bearer = await by_secret.verify(sign(claims(scope=claim), SECRET, "HS256"), Trace())
    assert bearer.scopes == granted


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (Config(jwt_jwks_url="http://issuer.test"), ["--jwt-issuer", "--jwt-audience"]),
        (Config(jwt_jwks_url="http://issuer.test", jwt_issuer="x"), ["--jwt-audience"]),
        (Config(jwt_jwks_url="http://issuer.test", jwt_audience="x"), ["--jwt-issuer"]),
        (replace(BOUND, jwt_jwks_url="http://issuer.test"), []),
        (Config(jwt_secret=HMAC_SECRET), []),
    ],
)
def test_a_jwks_whose_tokens_may_be_for_others_is_warned_of_in_one_line(
    config: Config, settings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    Tokens(config).warn()
    assert len(caplog.messages) == bool(settings)
    assert [flag for flag in ("--jwt-issuer", "--jwt-audience") if flag in caplog.text] == settings


@pytest.mark.parametrize("odd", [b"[" * 100_000 + b"]" * 100_000, b'"\\ud800"', b'"a\\u0000b"'])
async def test_claims_that_nothing_can_hold_refuse_the_token(by_secret: Tokens, odd: bytes) -> None:
    """Signed by the issuer, but too deep, or half a character."""
    payload = json.dumps(claims()).encode()[:-1] + b', "sub": ' + odd + b"}"
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (b'{"alg":"HS256"}', payload))
    seal = hmac.digest(HMAC_SECRET.encode(), signed, "sha256")
    token = b".".join((signed, base64.urlsafe_b64encode(seal).rstrip(b"="))).decode()
    with pytest.raises(InvalidToken):
        await by_secret.verify(token, Trace())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"exp": int(time.time()) - 60}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"nbf": int(time.time()) + 86_400}, "not yet valid"),
        ({"iss": "https://somebody.else"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "another-service"}, "aud"),
        ({"aud": None}, "aud"),
        ({"sub": None}, "'sub' must name the tenant"),
        ({"sub": 7}, "sub"),
        ({"sub": "x" * 191}, "'sub' must name the tenant"),
    ],
)
async def test_a_claim_that_is_wrong_refuses_the_token(
    by_secret: Tokens, change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidToken, match=complaint):
        await by_secret.verify(sign(claims(**change), SECRET, "HS256"), Trace())


async def test_a_claim_of_choice_names_the_tenant() -> None:
    tokens = Tokens(replace(BOUND, jwt_secret=HMAC_SECRET, jwt_tenant_claim="org"))
    bearer = await tokens.verify(sign(claims(org="acme"), SECRET, "HS256"), Trace())
    assert (bearer.tenant, bearer.subject) == ("jwt:acme", "alice")


async def test_another_secret_and_a_changed_payload_are_refused(by_secret: Tokens) -> None:
    other = OctKey.import_key("another secret of thirty-two characters or so")
    with pytest.raises(InvalidToken):
        await by_secret.verify(sign(claims(), other, "HS256"), Trace())
    header, _, signature = sign(claims(), SECRET, "HS256").split(".")
    forged = base64.urlsafe_b64encode(json.dumps(claims(sub="bob")).encode()).rstrip(b"=").decode()
    with pytest.raises(InvalidToken):
        await by_secret.verify(f"{header}.{forged}.{signature}", Trace())


@pytest.mark.parametrize("algorithm", ["none", "None", "HS384", "", None, 7, ["HS256"]])
async def test_an_algorithm_that_is_not_listed_is_refused(by_secret: Tokens, algorithm: object) -> None:
    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).rstrip(b"=").decode()
    payload = base64.urlsafe_b64encode(json.dumps(claims()).encode()).rstrip(b"=").decode()
    for signature in ("", "AAAA"):
        with pytest.raises(InvalidToken, match="algorithm"):
            await by_secret.verify(f"{header}.{payload}.{signature}", Trace())


async def test_a_public_key_is_never_taken_for_an_hmac_secret(issuer: Issuer, by_jwks: Tokens) -> None:
    for public in (issuer.rsa.as_pem(private=False), json.dumps(issuer.rsa.as_dict(private=False)).encode()):
        forged = _signed_with_bytes(public)
        with pytest.raises(InvalidToken, match="algorithm"):
            await by_jwks.verify(forged, Trace())
        both = Tokens(replace(BOUND, jwt_secret=HMAC_SECRET, jwt_jwks_url=issuer.url))
        with pytest.raises(InvalidToken):
            await both.verify(forged, Trace())


def _signed_with_bytes(secret: bytes) -> str:
    """HS256 by hand: the library refuses to take a public key for a secret, an attacker does not."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "kid": "rsa-1"}, claims())]
    signed = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), "sha256")).rstrip(b"=").decode()
    return f"{signed}.{signature}"


async def test_a_symmetric_key_in_the_document_is_no_key(issuer: Issuer) -> None:
    published = OctKey.generate_key(256, {"kid": "shared"})
    issuer.keys = [published]
    tokens = Tokens(replace(BOUND, jwt_jwks_url=issuer.url))
    with pytest.raises((InvalidToken, KeysUnavailable)):
        await tokens.verify(sign(claims(), published, "HS256"), Trace())


async def test_a_key_of_the_wrong_kind_for_the_algorithm_is_refused(by_jwks: Tokens, issuer: Issuer) -> None:
    with pytest.raises(InvalidToken, match="no key"):
        await by_jwks.verify(sign(claims(), issuer.ec, "ES256", kid="rsa-1"), Trace())


@pytest.mark.parametrize("garbage", ["..", "a.b.c", "e30.e30.e30", "\x00.\x00.\x00", "é.é.é", "W10.e30.x", "." * 9])
async def test_garbage_is_refused(by_secret: Tokens, garbage: str) -> None:
    with pytest.raises(InvalidToken):
        await by_secret.verify(garbage, Trace())


async def test_a_rotated_key_is_found_by_asking_again(issuer: Issuer) -> None:
    jwks = Jwks(issuer.url, refetch_min_s=0)
    trace = Trace()
    assert await jwks.find("rsa-1", "RS256", trace) is not None
    issuer.keys = [RSAKey.generate_key(2048, {"kid": "rsa-2"})]
    assert await jwks.find("rsa-2", "RS256", trace) is not None
    assert await jwks.find("rsa-1", "RS256", trace) is None  # withdrawn by the issuer
    assert [span.name for span in trace.spans] == ["jwks"] * 3


async def test_unknown_key_ids_do_not_make_us_ask_all_the_time(by_jwks: Tokens, issuer: Issuer) -> None:
    stranger = ECKey.generate_key("P-256", {"kid": "unknown"})
    for _ in range(5):
        with pytest.raises(InvalidToken, match="no key"):
            await by_jwks.verify(sign(claims(), stranger, "ES256"), Trace())
    assert issuer.requests == 1


async def test_an_outage_of_the_issuer_keeps_the_keys(issuer: Issuer) -> None:
    jwks = Jwks(issuer.url, refetch_min_s=0)
    assert await jwks.find("rsa-1", "RS256", Trace()) is not None
    issuer.broken = True
    assert await jwks.find("rsa-2", "RS256", Trace()) is None  # asked, in vain
    assert issuer.requests == 2
    assert await jwks.find("rsa-1", "RS256", Trace()) is not None


async def test_an_issuer_that_never_answered_is_not_the_bearers_fault(issuer: Issuer) -> None:
    issuer.broken = True
    with pytest.raises(KeysUnavailable):
        await Jwks(issuer.url).find("rsa-1", "RS256", Trace())


async def test_a_token_without_key_id_counts_only_when_one_key_fits(by_jwks: Tokens, issuer: Issuer) -> None:
    nameless = RSAKey.import_key({k: v for k, v in issuer.rsa.as_dict(private=True).items() if k != "kid"})
    assert (await by_jwks.verify(sign(claims(), nameless, "RS256"), Trace())).subject == "alice"


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}', b'{"keys": [1, {}, {"kty": []}]}', b"\xff",
     b'{"keys": [{"kty": "RSA"}]}', b'{"keys": [{"kty": "EC", "crv": "X", "x": "a", "y": "b"}]}',
     b'{"keys": [{"kty": "oct", "k": "c2hhcmVk"}]}'],
)  # fmt: skip
def test_a_document_without_a_usable_key_is_none(document: bytes) -> None:
    with pytest.raises(ValueError):
        parse(document)


async def test_a_key_of_an_unknown_kind_does_not_spoil_the_others(issuer: Issuer) -> None:
    good = issuer.ec.as_dict(private=False)
    strange = {"kty": "EC", "crv": "P-999", "x": "a", "y": "b", "kid": "strange"}
    padding = {"kty": "future", "data": "x" * 100_000}  # more than arrives in one piece
    issuer.document = {"keys": [strange, padding, good]}
    assert await Jwks(issuer.url).find("ec-1", "ES256", Trace()) is not None


async def test_a_document_without_end_is_not_read_to_the_end(issuer: Issuer) -> None:
    issuer.document = {"keys": [issuer.ec.as_dict(private=False)], "padding": "x" * DOCUMENT_BYTES_MAX}
    with pytest.raises(KeysUnavailable):
        await Jwks(issuer.url).find("ec-1", "ES256", Trace())
