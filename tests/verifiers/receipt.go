// Checks a Bulkhead receipt with the reference packages of Go's checksum database.
//
//	go run receipt.go VERIFIER-KEY-FILE RECEIPT-FILE
//
// Debian packages: golang-go golang-golang-x-mod-dev (GO111MODULE=off GOPATH=/usr/share/gocode). Written apart from the
// product, from the public formats. It shows that both entries are in the signed log and belong to one request, and which
// model the opened one names; the trace and the salts are not looked at. Exit status 0 when it is so, 1 when it is not.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	receiptBytesMax = 1024 * 1024
	keyBytesMax     = 1024
	proofHashesMax  = 64
	signaturesMax   = 16
)

func readFile(path string, bytesMax int64) ([]byte, error) {
	// Opening a pipe waits for its other end.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		err = fmt.Errorf("%s is longer than %d bytes", path, bytesMax)
	}
	return data, err
}

// decodeBase64 takes standard base64 in its one form.
func decodeBase64(text string) ([]byte, error) {
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err == nil && base64.StdEncoding.EncodeToString(data) != text {
		err = errors.New("base64 is not in its one form")
	}
	return data, err
}

func decodeDecimal(text string) (int64, error) {
	number, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (number < 0 || strconv.FormatInt(number, 10) != text) {
		err = errors.New("number is not in its one form")
	}
	return number, err
}

func decodeHash(text string) (tlog.Hash, error) {
	var hash tlog.Hash
	data, err := decodeBase64(text)
	if err == nil && len(data) != tlog.HashSize {
		err = errors.New("not a hash")
	}
	copy(hash[:], data)
	return hash, err
}

type receipt struct {
	extra      []byte
	index      int64
	proof      tlog.RecordProof
	checkpoint []byte
}

// parseReceipt splits a c2sp.org/tlog-proof@v1 file.
func parseReceipt(data []byte) (*receipt, error) {
	head, checkpoint, found := bytes.Cut(data, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	if !found || len(lines) < 3 || lines[0] != "c2sp.org/tlog-proof@v1" {
		return nil, errors.New("not a tlog-proof")
	}
	if !strings.HasPrefix(lines[1], "extra ") || !strings.HasPrefix(lines[2], "index ") {
		return nil, errors.New("the extra or index line is missing")
	}
	extra, err := decodeBase64(lines[1][len("extra "):])
	if err != nil {
		return nil, fmt.Errorf("extra: %v", err)
	}
	index, err := decodeDecimal(lines[2][len("index "):])
	if err != nil {
		return nil, fmt.Errorf("index: %v", err)
	}
	if len(lines)-3 > proofHashesMax {
		return nil, errors.New("the proof is too long")
	}
	var proof tlog.RecordProof
	for _, line := range lines[3:] {
		hash, err := decodeHash(line)
		if err != nil {
			return nil, fmt.Errorf("proof: %v", err)
		}
		proof = append(proof, hash)
	}
	return &receipt{extra, index, proof, checkpoint}, nil
}

// items reads deterministic CBOR (RFC 8949 section 4.2.1), item by item. The first error stays.
type items struct {
	data []byte
	err  error
}

func (i *items) fail(reason string) {
	if i.err == nil {
		i.err = errors.New(reason)
	}
	i.data = nil
}

func (i *items) take(count uint64) []byte {
	if count > uint64(len(i.data)) {
		i.fail("CBOR is cut off")
		return nil
	}
	taken := i.data[:count]
	i.data = i.data[count:]
	return taken
}

func (i *items) head(major byte) uint64 {
	first := i.take(1)
	if first == nil {
		return 0
	}
	short := first[0] & 31
	if first[0]>>5 != major || short > 27 {
		i.fail("a CBOR item has another type or no definite length")
		return 0
	}
	if short < 24 {
		return uint64(short)
	}
	size := uint(1) << (short - 24)
	var number uint64
	for _, part := range i.take(uint64(size)) {
		number = number<<8 | uint64(part)
	}
	least := uint64(24)
	if size > 1 {
		least = 1 << (4 * size)
	}
	if number < least {
		i.fail("a CBOR number is not in its shortest form")
	}
	return number
}

func (i *items) uint() uint64  { return i.head(0) }
func (i *items) bytes() []byte { return i.take(i.head(2)) }

func (i *items) bytesOrNull() []byte {
	if len(i.data) > 0 && i.data[0] == 0xf6 {
		i.take(1)
		return nil
	}
	return i.bytes()
}

type extra struct {
	sealed, opened []byte
	openedIndex    int64
	openedProof    tlog.RecordProof
}

// parseExtra steps over the salts and the trace.
func parseExtra(data []byte) (*extra, error) {
	read := items{data: data}
	fields, version := read.head(4), read.uint()
	if fields != 7 || version < 1 || version > 2 {
		return nil, errors.New("unknown extra data")
	}
	parsed := extra{sealed: read.bytes(), opened: read.bytes(), openedIndex: int64(read.uint())}
	proof := read.bytes()
	if read.err != nil {
		return nil, read.err
	}
	if len(proof)%tlog.HashSize != 0 || len(proof) > proofHashesMax*tlog.HashSize || parsed.openedIndex < 0 {
		return nil, errors.New("the second proof is malformed")
	}
	for ; len(proof) > 0; proof = proof[tlog.HashSize:] {
		var hash tlog.Hash
		copy(hash[:], proof)
		parsed.openedProof = append(parsed.openedProof, hash)
	}
	return &parsed, nil
}

// entryHead reads what every entry has and leaves the reader behind it.
func entryHead(data []byte) (read *items, fields, version, kind uint64, uuid []byte) {
	read = &items{data: data}
	fields, version, kind, uuid = read.head(4), read.uint(), read.uint(), read.bytes()
	if version < 1 || version > 5 {
		read.fail(fmt.Sprintf("entry version %d is not known", version))
	}
	read.bytes()
	read.bytes()
	read.uint()
	read.uint()
	read.bytesOrNull()
	read.uint()
	read.bytes()
	return
}

// openedFacts says what the opened entry says of the model, and that the two entries belong together.
func openedFacts(parsed *extra) (string, error) {
	read, fields, version, kind, uuid := entryHead(parsed.opened)
	read.uint()
	for part := 0; part < 4; part++ {
		read.bytes()
	}
	model := read.bytes()
	fingerprint := "none"
	openedFields := uint64(19)
	if version >= 2 {
		openedFields = 20
		digest := read.bytes()
		if len(digest) != sha256.Size {
			read.fail("a digest has another length")
		}
		fingerprint = fmt.Sprintf("%x", digest)
	}
	read.bytes()
	read.uint()
	read.uint()
	if read.err != nil {
		return "", read.err
	}
	if kind != 1 || fields != openedFields || len(read.data) > 0 || len(model) != sha256.Size {
		return "", errors.New("the second entry is not an opened one")
	}
	sealed, sealedFields, sealedVersion, sealedKind, _ := entryHead(parsed.sealed)
	wanted := uint64(28)
	if sealedVersion >= 3 {
		wanted = 29
	}
	request, index, leaf := sealed.bytes(), sealed.uint(), sealed.bytes()
	opened := tlog.RecordHash(parsed.opened)
	if sealed.err != nil || sealedKind != 2 || sealedFields != wanted {
		return "", errors.New("the first entry is not a sealed one")
	}
	if !bytes.Equal(request, uuid) || index != uint64(parsed.openedIndex) || !bytes.Equal(leaf, opened[:]) {
		return "", errors.New("the entries belong to different requests")
	}
	return fmt.Sprintf("model=%x fingerprint=%s", model, fingerprint), nil
}

// openCheckpoint checks the log's signature and returns origin and tree.
func openCheckpoint(data []byte, verifier note.Verifier) (string, tlog.Tree, error) {
	var tree tlog.Tree
	if bytes.Count(data, []byte("\n\u2014 ")) > signaturesMax {
		return "", tree, errors.New("too many signatures")
	}
	opened, err := note.Open(data, note.VerifierList(verifier))
	if err != nil {
		return "", tree, fmt.Errorf("%v (one key is known here, %s+%08x, and no rotation of it)", err, verifier.Name(), verifier.KeyHash())
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return "", tree, errors.New("not exactly three lines")
	}
	if lines[0] != verifier.Name() {
		return "", tree, errors.New("another log")
	}
	if tree.N, err = decodeDecimal(lines[1]); err != nil {
		return "", tree, err
	}
	tree.Hash, err = decodeHash(lines[2])
	return lines[0], tree, err
}

func check(keyPath, receiptPath string) (string, error) {
	key, err := readFile(keyPath, keyBytesMax)
	if err != nil {
		return "", err
	}
	verifier, err := note.NewVerifier(strings.TrimSuffix(string(key), "\n"))
	if err != nil {
		return "", fmt.Errorf("key: %v", err)
	}
	data, err := readFile(receiptPath, receiptBytesMax)
	if err != nil {
		return "", err
	}
	parsed, err := parseReceipt(data)
	if err != nil {
		return "", err
	}
	entries, err := parseExtra(parsed.extra)
	if err != nil {
		return "", err
	}
	entry := entries.sealed
	origin, tree, err := openCheckpoint(parsed.checkpoint, verifier)
	if err != nil {
		return "", fmt.Errorf("checkpoint: %v", err)
	}
	if err := tlog.CheckRecord(parsed.proof, tree.N, tree.Hash, parsed.index, tlog.RecordHash(entry)); err != nil {
		return "", fmt.Errorf("inclusion: %v", err)
	}
	opened := tlog.RecordHash(entries.opened)
	if err := tlog.CheckRecord(entries.openedProof, tree.N, tree.Hash, entries.openedIndex, opened); err != nil {
		return "", fmt.Errorf("inclusion of the opened entry: %v", err)
	}
	facts, err := openedFacts(entries)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "under the key %s+%08x: one key is known here, and no rotation of it\n", verifier.Name(), verifier.KeyHash())
	sum := sha256.Sum256(entry)
	return fmt.Sprintf("origin=%s size=%d index=%d entry-sha256=%x %s", origin, tree.N, parsed.index, sum, facts), nil
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: receipt VERIFIER-KEY-FILE RECEIPT-FILE")
		os.Exit(2)
	}
	result, err := check(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Println("REFUSED:", err)
		os.Exit(1)
	}
	fmt.Println("OK", result)
}
