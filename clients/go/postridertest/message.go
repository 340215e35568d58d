package postridertest

import (
	"encoding/json"
	"time"
)

// Message is what Postrider sent for a record.
type Message struct {
	ID          string         `json:"id"`
	Key         *string        `json:"key"` // nil where the record has none
	Type        string         `json:"type"`
	Destination string         `json:"destination"`
	ContentType string         `json:"contentType"`
	Headers     map[string]any `json:"headers"`
	Timestamp   time.Time      `json:"timestamp"`
	// Payload is the JSON of a document, an array or a scalar. A string is a JSON string.
	Payload json.RawMessage `json:"payload"`
	// Bytes is the payload of a record whose payload is binary.
	Bytes []byte `json:"payloadBase64"`
}

// Decode reads the payload, as json.Unmarshal does.
func (m Message) Decode(value any) error { return json.Unmarshal(m.Payload, value) }
