package agenttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/agent/agenttest"
)

// refund is a function of an agent: only the customer service may call it.
func refund(ctx context.Context, amount int) (string, error) {
	p := agent.CallerOf(ctx)
	if p == nil || p.Org != "did:web:globex.example" || !slices.Contains(p.Roles, "customer-service") {
		return "", errors.New("only the customer service of globex refunds")
	}
	return fmt.Sprintf("refunded %d", amount), nil
}

func ExampleCaller() {
	clerk := agenttest.Member("did:web:globex.example", "customer-service")
	fmt.Println(refund(agenttest.Caller(context.Background(), clerk), 5))
	fmt.Println(refund(agenttest.Caller(context.Background(), agenttest.Member("did:web:globex.example")), 5))
	fmt.Println(refund(agenttest.Caller(context.Background(), nil), 5))
	// Output:
	// refunded 5 <nil>
	//  only the customer service of globex refunds
	//  only the customer service of globex refunds
}
