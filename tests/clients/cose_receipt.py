"""A receipt in COSE, read by pycose, which knows nothing of us: RFC 9052 for the signature, RFC 9942 for what it is over.

BULKHEAD_URL and BULKHEAD_KEY_ACME are set by the test that calls it.
"""

import base64
import hashlib
import os
import time

import cbor2
import httpx
from pycose.keys import OKPKey
from pycose.keys.curves import Ed25519
from pycose.messages import CoseMessage

URL, KEY = os.environ["BULKHEAD_URL"], os.environ["BULKHEAD_KEY_ACME"]
VDS, PROOFS, RFC9162_SHA256, INCLUSION, EXTRA = 395, 396, 1, -1, -65537


def inclusion_root(leaf, index, size, path):
    """RFC 9162 section 2.1.3.2."""
    node, last, root = index, size - 1, leaf
    for sibling in path:
        assert last != 0
        if node & 1 or node == last:
            root = hashlib.sha256(b"\x01" + sibling + root).digest()
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            root = hashlib.sha256(b"\x01" + root + sibling).digest()
        node, last = node >> 1, last >> 1
    assert last == 0
    return root


def main():
    with httpx.Client(base_url=URL, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        request = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        request_id = client.post("/v1/chat/completions", json=request).headers["x-isolation-id"]
        for _ in range(100):
            receipt = client.get(f"/v1/isolation/receipts/{request_id}", headers={"accept": "application/cose"})
            if receipt.status_code != 202:
                break
            time.sleep(0.1)
        assert receipt.status_code == 200 and receipt.headers["content-type"] == "application/cose", receipt
        name, _, material = client.get("/v1/isolation/key").text.strip().split("+", 2)

    message = CoseMessage.decode(receipt.content)
    assert message.payload is None, "the root hash is detached"
    assert message.phdr[VDS] == RFC9162_SHA256
    claims = message.phdr[15]
    assert (claims[1], claims[2]) == (name, request_id), claims
    (proof,) = message.uhdr[PROOFS][INCLUSION]
    size, index, path = cbor2.loads(proof)
    entry = cbor2.loads(message.uhdr[EXTRA])[1]
    root = inclusion_root(hashlib.sha256(b"\x00" + entry).digest(), index, size, path)
    message.key = OKPKey(crv=Ed25519, x=base64.b64decode(material)[1:])
    assert message.verify_signature(detached_payload=root), "pycose does not verify the receipt"
    changed = bytes([root[0] ^ 1]) + root[1:]
    assert not message.verify_signature(detached_payload=changed), "pycose verifies anything"
    print(f"pycose verifies entry {index} of {size}")


if __name__ == "__main__":
    main()
