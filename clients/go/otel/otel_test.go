package outboxotel_test

import (
	"context"
	"testing"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	outboxotel "github.com/postrider/postrider/clients/go/otel"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceContextIsInTheHeadersOfRecords(t *testing.T) {
	headers := enqueuedHeaders(t, inSpan(t), outboxotel.TraceContext)

	for name, want := range map[string]string{
		"source": "shop", "traceparent": traceparent, "tracestate": "vendor=1",
	} {
		if got, ok := headers.Lookup(name).StringValueOK(); !ok || got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestTraceContextAddsNothingWithoutSpan(t *testing.T) {
	headers := enqueuedHeaders(t, t.Context(), outboxotel.TraceContext)

	if got, want := headers.String(), `{"source": "shop"}`; got != want {
		t.Errorf("headers = %s, want %s", got, want)
	}
}

func TestPropagateUsesTheGivenPropagator(t *testing.T) {
	member, err := baggage.NewMember("tenant", "acme")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}

	headers := enqueuedHeaders(t, baggage.ContextWithBaggage(t.Context(), bag),
		outboxotel.Propagate(propagation.Baggage{}))

	if got, want := headers.String(), `{"source": "shop","baggage": "tenant=acme"}`; got != want {
		t.Errorf("headers = %s, want %s", got, want)
	}
}

// inSpan returns a context with a span, as a tracer's Start does.
func inSpan(t *testing.T) context.Context {
	carrier := propagation.MapCarrier{"traceparent": traceparent, "tracestate": "vendor=1"}
	ctx := propagation.TraceContext{}.Extract(t.Context(), carrier)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		t.Fatal("no span")
	}
	return ctx
}

// enqueuedHeaders enqueues a record in a transaction of ctx, and reads its headers.
func enqueuedHeaders(t *testing.T, ctx context.Context, hook outbox.HeaderHook) bson.Raw {
	t.Helper()
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	record, err := outbox.NewRecord("OrderCreated", nil, outbox.WithHeader("source", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(ctx)

	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		return outbox.New(db, outbox.WithHeaderHook(hook)).Enqueue(ctx, record)
	})

	if err != nil {
		t.Fatal(err)
	}
	stored, err := db.Collection("outbox_records").FindOne(t.Context(), bson.D{}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	return stored.Lookup("headers").Document()
}
