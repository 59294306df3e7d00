import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.index.mapper.MapperExtrasPlugin;
import org.opensearch.index.reindex.ReindexPlugin;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.painless.PainlessPlugin;
import org.opensearch.transport.Netty4Plugin;

/**
 * Runs one node of OpenSearch 2 from the jars that Maven has: its distributions
 * are not there. The arguments are settings, name=value; path.home is required.
 */
public final class OpenSearchNode extends Node {
    private OpenSearchNode(Environment environment) {
        super(environment, List.of(Netty4Plugin.class, ReindexPlugin.class, PainlessPlugin.class,
            MapperExtrasPlugin.class, CommonAnalysisPlugin.class), true);
    }

    public static void main(String[] args) throws Exception {
        Settings.Builder settings = Settings.builder()
            .put("transport.type", "netty4")
            .put("http.type", "netty4");
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Path config = Path.of(settings.get("path.home"), "config");
        CountDownLatch closed = new CountDownLatch(1);
        try {
            Node node = new OpenSearchNode(
                InternalSettingsPreparer.prepareEnvironment(settings.build(), Map.of(), config, () -> "local"));
            node.start();
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                try {
                    node.close();
                } catch (Exception e) {
                    e.printStackTrace();
                }
                closed.countDown();
            }));
        } catch (Exception e) { // threads of a half-made node would keep the process alive
            e.printStackTrace();
            System.exit(1);
        }
        closed.await(); // those of a whole one do not
    }
}
