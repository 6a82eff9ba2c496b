import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import tangram.ApiClient;

/** Decodes and encodes examples with generated types: `java Examples FILE`, an array of {"schema": …, "value": …}. */
public class Examples {
  public static void main(String[] arguments) throws Exception {
    ObjectMapper mapper = new ApiClient().getObjectMapper();
    List<Object> decoded = new ArrayList<>();
    for (JsonNode each : mapper.readTree(Files.readString(Path.of(arguments[0])))) {
      Class<?> model = Class.forName("tangram.model." + each.get("schema").asText());
      decoded.add(mapper.treeToValue(each.get("value"), model));
    }
    System.out.println(mapper.writeValueAsString(decoded));
  }
}
