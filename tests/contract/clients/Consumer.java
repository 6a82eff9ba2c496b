import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import tangram.ApiClient;
import tangram.ApiException;
import tangram.api.ActionsApi;
import tangram.model.Action;
import tangram.model.ActionListResponse;
import tangram.model.AmdahlElasticity;
import tangram.model.Cpu;
import tangram.model.CpuRange;
import tangram.model.DemandSpec;
import tangram.model.Elasticity;
import tangram.model.FieldError;
import tangram.model.ProblemDetails;
import tangram.model.SubmitActionRequest;
import tangram.model.WaitRequest;
import tangram.model.WaitResponse;

/** Uses a generated client: `java Consumer URL KEY` prints its observations as one JSON object. */
public class Consumer {
  private static final String TASK = "java";
  private final ApiClient client = new ApiClient();
  private final ActionsApi actions;

  private Consumer(String url, String key) {
    client.updateBaseUri(url);
    client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + key));
    actions = new ActionsApi(client);
  }

  private static SubmitActionRequest squared(int n) {
    CpuRange cores = new CpuRange().min(0.5).max(1.0);
    AmdahlElasticity half = new AmdahlElasticity().model(AmdahlElasticity.ModelEnum.AMDAHL).parallelFraction(0.5);
    return new SubmitActionRequest()
        .task(TASK)
        .argv(List.of("python3", "-c", "print(" + n + " ** 2)"))
        .demand(new DemandSpec().cpu(new Cpu(cores)).memoryMib(64))
        .elasticity(new Elasticity(half))
        .labels(Map.of("n", String.valueOf(n)));
  }

  private UUID submitted(int n) throws ApiException {
    return actions.submitAction(squared(n), null, TASK + "-" + n).getId();
  }

  private List<Action> settled(List<UUID> ids) throws ApiException {
    List<Action> done = new ArrayList<>();
    while (!ids.isEmpty()) {
      WaitResponse answer = actions.waitForActions(new WaitRequest().ids(ids).timeoutS(30.0));
      done.addAll(answer.getSettled());
      ids = answer.getPending();
    }
    return done;
  }

  private List<UUID> listed() throws ApiException {
    List<UUID> found = new ArrayList<>();
    String cursor = null;
    do {
      ActionListResponse page = actions.listActions(TASK, null, null, cursor, 2);
      page.getItems().forEach(action -> found.add(action.getId()));
      cursor = page.getNextCursor();
    } while (cursor != null);
    return found;
  }

  private ProblemDetails refused() throws Exception {
    SubmitActionRequest impossible = squared(0);
    impossible.getDemand().memoryMib(1);
    try {
      actions.submitAction(impossible, null, null);
    } catch (ApiException error) {
      return client.getObjectMapper().readValue(error.getResponseBody(), ProblemDetails.class);
    }
    throw new IllegalStateException("the action was accepted");
  }

  private Map<String, Object> observations() throws Exception {
    List<UUID> ids = new ArrayList<>();
    for (int n : List.of(2, 3, 4)) {
      ids.add(submitted(n));
    }
    UUID again = submitted(2);
    List<Action> done = settled(ids);
    Map<String, String> printed = new LinkedHashMap<>();
    done.forEach(action -> printed.put(action.getLabels().get("n"), action.getResult().getStdout().getText()));
    ProblemDetails problem = refused();
    List<String> fields = problem.getErrors().stream().map(FieldError::getField).toList();
    return Map.of(
        "ids", ids,
        "again", again,
        "outcomes", done.stream().map(Action::getOutcome).toList(),
        "printed", printed,
        "exit_codes", done.stream().map(action -> action.getResult().getExitCode()).toList(),
        "listed", listed(),
        "problem", Map.of("code", problem.getCode(), "status", problem.getStatus(), "fields", fields));
  }

  public static void main(String[] arguments) throws Exception {
    Consumer consumer = new Consumer(arguments[0], arguments[1]);
    System.out.println(consumer.client.getObjectMapper().writeValueAsString(consumer.observations()));
  }
}
