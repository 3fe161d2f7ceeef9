package main

import (
	"crypto/sha256"
	"encoding/binary"
)

// Sixteen bytes that stand for these fields, each with its length before it.
func digest(fields ...[]byte) []byte {
	hash := sha256.New()
	var length [8]byte
	for _, field := range fields {
		binary.BigEndian.PutUint64(length[:], uint64(len(field)))
		hash.Write(length[:])
		hash.Write(field)
	}
	return hash.Sum(nil)[:16]
}
