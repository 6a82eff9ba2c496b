// Use a generated client: `consumer URL KEY` prints its observations as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"consumer/tangram"
)

const task = "go"

type observations struct {
	IDs       []string          `json:"ids"`
	Again     string            `json:"again"`
	Outcomes  []string          `json:"outcomes"`
	Printed   map[string]string `json:"printed"`
	ExitCodes []int64           `json:"exit_codes"`
	Listed    []string          `json:"listed"`
	Problem   observedProblem   `json:"problem"`
}

type observedProblem struct {
	Code   string   `json:"code"`
	Status int64    `json:"status"`
	Fields []string `json:"fields"`
}

func squared(n int) tangram.SubmitActionRequest {
	cores := tangram.NewCpuRange(0.5)
	cores.SetMax(1)
	demand := tangram.NewDemandSpec()
	demand.SetCpu(tangram.CpuRangeAsCpu(cores))
	demand.SetMemoryMib(64)
	body := tangram.NewSubmitActionRequest(task)
	body.SetArgv([]string{"python3", "-c", fmt.Sprintf("print(%d ** 2)", n)})
	body.SetDemand(*demand)
	body.SetElasticity(tangram.AmdahlElasticityAsElasticity(tangram.NewAmdahlElasticity("amdahl", 0.5)))
	body.SetLabels(map[string]string{"n": strconv.Itoa(n)})
	return *body
}

func submitted(ctx context.Context, client *tangram.APIClient, n int) string {
	key := fmt.Sprintf("%s-%d", task, n)
	accepted, _, err := client.ActionsAPI.SubmitAction(ctx).SubmitActionRequest(squared(n)).IdempotencyKey(key).Execute()
	check(err)
	return accepted.Id
}

func settled(ctx context.Context, client *tangram.APIClient, ids []string) []tangram.Action {
	var done []tangram.Action
	for len(ids) > 0 {
		body := tangram.NewWaitRequest(ids)
		body.SetTimeoutS(30)
		answer, _, err := client.ActionsAPI.WaitForActions(ctx).WaitRequest(*body).Execute()
		check(err)
		done = append(done, answer.Settled...)
		ids = answer.Pending
	}
	return done
}

func listed(ctx context.Context, client *tangram.APIClient) []string {
	var found []string
	for request := client.ActionsAPI.ListActions(ctx).Task(task).Limit(2); ; {
		page, _, err := request.Execute()
		check(err)
		for _, action := range page.Items {
			found = append(found, action.Id)
		}
		if !page.HasNextCursor() {
			return found
		}
		request = request.Cursor(page.GetNextCursor())
	}
}

func refused(ctx context.Context, client *tangram.APIClient) observedProblem {
	impossible := squared(0)
	impossible.Demand.SetMemoryMib(1)
	_, _, err := client.ActionsAPI.SubmitAction(ctx).SubmitActionRequest(impossible).Execute()
	var failure *tangram.GenericOpenAPIError
	if !errors.As(err, &failure) {
		check(fmt.Errorf("expected an error response, got %v", err))
	}
	problem := failure.Model().(tangram.ProblemDetails)
	seen := observedProblem{Code: problem.Code, Status: problem.Status}
	for _, each := range problem.Errors {
		seen.Fields = append(seen.Fields, each.Field)
	}
	return seen
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	configuration := tangram.NewConfiguration()
	configuration.Servers = tangram.ServerConfigurations{{URL: os.Args[1]}}
	client := tangram.NewAPIClient(configuration)
	ctx := context.WithValue(context.Background(), tangram.ContextAccessToken, os.Args[2])

	seen := observations{Printed: map[string]string{}}
	for _, n := range []int{2, 3, 4} {
		seen.IDs = append(seen.IDs, submitted(ctx, client, n))
	}
	seen.Again = submitted(ctx, client, 2)
	for _, action := range settled(ctx, client, seen.IDs) {
		seen.Outcomes = append(seen.Outcomes, string(action.GetOutcome()))
		seen.Printed[action.GetLabels()["n"]] = *action.Result.Stdout.Text
		seen.ExitCodes = append(seen.ExitCodes, *action.Result.ExitCode)
	}
	seen.Problem = refused(ctx, client)
	seen.Listed = listed(ctx, client)
	check(json.NewEncoder(os.Stdout).Encode(seen))
}
