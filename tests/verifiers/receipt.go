// Checks a Bulkhead receipt with the reference packages of Go's checksum database.
//
//	go run receipt.go VERIFIER-KEY-FILE RECEIPT-FILE
//
// Debian packages: golang-go golang-golang-x-mod-dev (GO111MODULE=off GOPATH=/usr/share/gocode). Written apart from the
// product, from the public formats. It shows that the sealed entry is in the signed log; the opened entry, the trace and
// the salts beside it are not looked at. Exit status 0 when it is, 1 when it is not.
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

// sealedEntry takes the first byte string of the extra data: CBOR array, version 1, entry.
func sealedEntry(extra []byte) ([]byte, error) {
	if len(extra) < 6 || extra[0]>>5 != 4 || extra[0]&31 >= 24 || extra[1] != 1 || extra[2]>>5 != 2 {
		return nil, errors.New("unknown extra data")
	}
	length, offset, shortest := int(extra[2]&31), 3, true
	switch {
	case length < 24:
	case length == 24:
		length, offset = int(extra[3]), 4
		shortest = length >= 24
	case length == 25:
		length, offset = int(extra[3])<<8|int(extra[4]), 5
		shortest = length >= 256
	default:
		return nil, errors.New("the entry is too long")
	}
	if !shortest || len(extra) < offset+length {
		return nil, errors.New("the entry is cut off or its length is not in its shortest form")
	}
	return extra[offset : offset+length], nil
}

// openCheckpoint checks the log's signature and returns origin and tree.
func openCheckpoint(data []byte, verifier note.Verifier) (string, tlog.Tree, error) {
	var tree tlog.Tree
	if bytes.Count(data, []byte("\n\u2014 ")) > signaturesMax {
		return "", tree, errors.New("too many signatures")
	}
	opened, err := note.Open(data, note.VerifierList(verifier))
	if err != nil {
		return "", tree, err
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
	entry, err := sealedEntry(parsed.extra)
	if err != nil {
		return "", err
	}
	origin, tree, err := openCheckpoint(parsed.checkpoint, verifier)
	if err != nil {
		return "", fmt.Errorf("checkpoint: %v", err)
	}
	if err := tlog.CheckRecord(parsed.proof, tree.N, tree.Hash, parsed.index, tlog.RecordHash(entry)); err != nil {
		return "", fmt.Errorf("inclusion: %v", err)
	}
	sum := sha256.Sum256(entry)
	return fmt.Sprintf("origin=%s size=%d index=%d entry-sha256=%x", origin, tree.N, parsed.index, sum), nil
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
