// A model server and a tool server that are never the bottleneck: OpenAI-compatible chat completions (whole or streamed) and MCP over
// streamable HTTP, on one epoll loop, without dependencies.
//
//   g++ -O2 -std=c++20 -o mock mock.cpp        ./mock PORT        (port 0: any free one; the port is printed)
//
// What it does is chosen by the model's name in the request, so that it keeps no state of a conversation:
//   kimi-mock_k1_l420_c200_i20000_techo   one tool round (k), 420 ms to the first token (l), 200 chunks (c), 20,000 us apart (i), tool echo (t)
// GET /stats counts requests, connections and the peak of requests in flight; POST /reset begins to count afresh.
#include <iostream>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

using std::string;
using sv = std::string_view;
using u64 = uint64_t;

static u64 now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

struct Stats {
    long http = 0, chat = 0, streamed = 0, chunks = 0, mcp = 0, tools = 0;
    long accepted = 0, connections = 0, connections_peak = 0, inflight = 0, inflight_peak = 0;
} stats;

static void peak(long& highest, long value) { if (value > highest) highest = value; }

// -- just enough JSON: values are found, not parsed --------------------------------------------------------------------------------

static size_t skip_space(sv s, size_t i) {
    while (i < s.size() && strchr(" \n\t\r", s[i])) i++;
    return i;
}

static size_t skip_string(sv s, size_t i) {
    for (i++; i < s.size(); i++) {
        if (s[i] == '\\') i++;
        else if (s[i] == '"') return i + 1;
    }
    return s.size();
}

static size_t skip_value(sv s, size_t i) {
    i = skip_space(s, i);
    if (i >= s.size()) return i;
    if (s[i] == '"') return skip_string(s, i);
    if (s[i] == '{' || s[i] == '[') {
        int depth = 0;
        while (i < s.size()) {
            if (s[i] == '"') { i = skip_string(s, i); continue; }
            if (s[i] == '{' || s[i] == '[') depth++;
            if ((s[i] == '}' || s[i] == ']') && --depth == 0) return i + 1;
            i++;
        }
        return i;
    }
    while (i < s.size() && !strchr(",}] \n", s[i])) i++;
    return i;
}

// The text of one member of an object, "" where it is not there.
static sv member(sv s, sv name) {
    size_t i = skip_space(s, 0);
    if (i >= s.size() || s[i] != '{') return {};
    for (i++;;) {
        i = skip_space(s, i);
        if (i < s.size() && s[i] == ',') { i++; continue; }
        if (i >= s.size() || s[i] != '"') return {};
        size_t end = skip_string(s, i);
        sv key = s.substr(i + 1, end - i - 2);
        i = skip_space(s, end);
        if (i >= s.size() || s[i] != ':') return {};
        i = skip_space(s, i + 1);
        size_t after = skip_value(s, i);
        if (key == name) return s.substr(i, after - i);
        i = after;
    }
}

static sv unquoted(sv value) { return value.size() >= 2 && value[0] == '"' ? value.substr(1, value.size() - 2) : value; }

// How often a member has this text as its value, at any depth.
static int count_member(sv body, sv name, sv value) {
    int found = 0;
    for (size_t at = body.find(name); at != sv::npos; at = body.find(name, at + 1)) {
        size_t i = skip_space(body, at + name.size());
        if (i < body.size() && body[i] == ':' && body.substr(skip_space(body, i + 1), value.size()) == value) found++;
    }
    return found;
}

// -- what to answer ------------------------------------------------------------------------------------------------------------------

struct Spec {
    int rounds = 1, latency_ms = 0, chunks = 20, interval_us = 0;
    string tool = "echo", model = "kimi-mock";
};

static Spec spec_of(sv body) {
    Spec spec;
    sv model = unquoted(member(body, "model"));
    if (model.empty()) return spec;
    spec.model = string(model);
    for (size_t i = model.find('_'); i != sv::npos;) {
        size_t next = model.find('_', i + 1);
        string part(model.substr(i + 1, (next == sv::npos ? model.size() : next) - i - 1));
        int value = part.empty() ? 0 : atoi(part.c_str() + 1);
        switch (part[0]) {
            case 'k': spec.rounds = value; break;
            case 'l': spec.latency_ms = value; break;
            case 'c': spec.chunks = value; break;
            case 'i': spec.interval_us = value; break;
            case 't': spec.tool = part.substr(1); break;
        }
        i = next;
    }
    return spec;
}

// The offered tool whose name holds the wanted one (clients qualify names), or the wanted one itself.
static string tool_name(sv body, const string& wanted) {
    sv tools = member(body, "tools");
    for (size_t at = tools.find("\"name\""); at != sv::npos; at = tools.find("\"name\"", at + 6)) {
        size_t i = skip_space(tools, at + 6);
        if (i >= tools.size() || tools[i] != ':') continue;
        i = skip_space(tools, i + 1);
        if (i >= tools.size() || tools[i] != '"') continue;
        sv name = tools.substr(i + 1, skip_string(tools, i) - i - 2);
        if (name.find(wanted) != sv::npos) return string(name);
    }
    return wanted;
}

static const char* TOOLS =
    R"("tools":[{"name":"echo","description":"Echo the text back","inputSchema":{"type":"object","properties":{"text":)"
    R"({"type":"string","description":"text to echo"}},"required":["text"]}}])";

// The answer to one JSON-RPC message; "" for a notification, which has none.
static string rpc(sv body) {
    stats.mcp++;
    sv id = member(body, "id"), method = unquoted(member(body, "method")), params = member(body, "params");
    if (id.empty()) return "";
    string answer = R"({"jsonrpc":"2.0","id":)" + string(id);
    if (method == "initialize") {
        sv version = member(params, "protocolVersion");
        answer += R"(,"result":{"protocolVersion":)" + string(version.empty() ? sv("\"2025-06-18\"") : version) +
                  R"(,"capabilities":{"tools":{"listChanged":false}},"serverInfo":{"name":"mock","version":"1"}}})";
    } else if (method == "server/discover") {
        answer += R"(,"result":{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25","2025-06-18"],)"
                  R"("capabilities":{"tools":{}},"ttlMs":3600000,"cacheScope":"private",)"
                  R"("_meta":{"io.modelcontextprotocol/serverInfo":{"name":"mock","version":"1"}}}})";
    } else if (method == "tools/list") {
        answer += string(R"(,"result":{"resultType":"complete","ttlMs":3600000,"cacheScope":"private",)") + TOOLS + "}}";
    } else if (method == "tools/call") {
        stats.tools++;
        sv text = member(member(params, "arguments"), "text");
        answer += R"(,"result":{"resultType":"complete","content":[{"type":"text","text":)" + string(text.empty() ? sv("\"\"") : text) +
                  R"(}],"isError":false}})";
    } else if (method == "ping") {
        answer += R"(,"result":{}})";
    } else {
        answer += R"(,"error":{"code":-32601,"message":"method not found"}})";
    }
    return answer;
}

static void respond(string& out, const char* status, sv body) {
    out += string("HTTP/1.1 ") + status + "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    out += body;
}

static void add_chunk(string& out, sv data) {
    char size[16];
    int length = snprintf(size, sizeof size, "%zx\r\n", data.size());
    out.append(size, length);
    out += data;
    out += "\r\n";
}

// -- connections ---------------------------------------------------------------------------------------------------------------------

struct Connection {
    Connection(int fd, u64 generation) : fd(fd), generation(generation) {}
    int fd;
    u64 generation;
    string in, out;
    size_t sent = 0;
    bool wants_to_write = false, close_after = false;
    // The chat request that is being answered: its head is due first, then `left` chunks, then the tail.
    bool busy = false, streaming = false;
    string head, chunk, tail;
    int left = 0;
    u64 interval_ns = 0;
};

struct Timer {
    u64 due;
    int fd;
    u64 generation;
    bool operator<(const Timer& other) const { return due > other.due; }
};

class Server {
    int poll_fd = -1, listener = -1;
    u64 generations = 0;
    std::unordered_map<int, Connection*> connections;
    std::priority_queue<Timer> timers;

    void arm(Connection* c, u64 due) { timers.push({due, c->fd, c->generation}); }

    void watch(Connection* c, bool write) {
        if (c->wants_to_write == write) return;
        c->wants_to_write = write;
        epoll_event event{static_cast<uint32_t>(write ? EPOLLIN | EPOLLOUT : EPOLLIN), {.fd = c->fd}};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
    }

    void end_request(Connection* c) {
        if (c->busy) stats.inflight--;
        c->busy = c->streaming = false;
    }

    void drop(Connection* c) {
        end_request(c);
        close(c->fd);
        connections.erase(c->fd);
        stats.connections--;
        delete c;
    }

    // False: the connection is gone.
    bool flush(Connection* c) {
        while (c->sent < c->out.size()) {
            ssize_t n = send(c->fd, c->out.data() + c->sent, c->out.size() - c->sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) { watch(c, true); return true; }
            if (n < 0) { drop(c); return false; }
            c->sent += n;
        }
        c->out.clear();
        c->sent = 0;
        watch(c, false);
        if (c->close_after && !c->busy) { drop(c); return false; }
        return true;
    }

    void on_timer(const Timer& timer) {
        auto it = connections.find(timer.fd);
        if (it == connections.end() || it->second->generation != timer.generation) return;
        Connection* c = it->second;
        c->out += c->head;
        c->head.clear();
        if (c->streaming) {
            int n = c->interval_ns && c->left > 0 ? 1 : c->left;
            for (int i = 0; i < n; i++) add_chunk(c->out, c->chunk);
            stats.chunks += n;
            c->left -= n;
            if (c->left > 0) arm(c, now_ns() + c->interval_ns);
            else { c->out += c->tail; end_request(c); }
        } else {
            end_request(c);
        }
        if (flush(c) && !c->busy) answer_all(c);
    }

    void chat(Connection* c, sv body) {
        static long ids = 0;
        Spec spec = spec_of(body);
        long id = ++ids;
        bool stream = count_member(body, "\"stream\"", "true") > 0, call = count_member(body, "\"role\"", "\"tool\"") < spec.rounds;
        stats.chat++;
        peak(stats.inflight_peak, ++stats.inflight);
        c->busy = true;
        string envelope = R"("id":"chatcmpl-)" + std::to_string(id) + R"(","created":)" + std::to_string(time(nullptr)) + R"(,"model":")" +
                          spec.model + R"(",)";
        int prompt = body.size() / 4, output = call ? 20 : spec.chunks;
        string usage = R"("usage":{"prompt_tokens":)" + std::to_string(prompt) + R"(,"completion_tokens":)" + std::to_string(output) +
                       R"(,"total_tokens":)" + std::to_string(prompt + output) + "}";
        string tool = R"("id":"call_)" + std::to_string(id) + R"(","type":"function","function":{"name":")" + tool_name(body, spec.tool) + R"(",)";
        string arguments = R"("arguments":"{\"text\":\"hello )" + std::to_string(id) + R"(\"}")";
        if (stream) begin_stream(c, spec, envelope, usage, tool, arguments, call);
        else {
            string text = "FINAL";
            for (int i = 0; i < spec.chunks; i++) text += " tok";
            string message = call ? R"(null,"tool_calls":[{)" + tool + arguments + "}}]" : '"' + text + '"';
            respond(c->head, "200 OK",
                    "{" + envelope + R"("object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":)" + message +
                        R"(},"finish_reason":")" + (call ? "tool_calls" : "stop") + R"("}],)" + usage + "}");
        }
        arm(c, now_ns() + spec.latency_ms * 1000000ull);
    }

    void begin_stream(Connection* c, const Spec& spec, sv envelope, sv usage, const string& tool, const string& arguments, bool call) {
        stats.streamed++;
        string begin = R"(data: {"object":"chat.completion.chunk",)" + string(envelope) + R"("choices":[{"index":0,"delta":)";
        string end = R"(,"finish_reason":null}]})" "\n\n";
        c->head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n";
        add_chunk(c->head, begin + R"({"role":"assistant","content":""})" + end);
        if (call) {
            add_chunk(c->head, begin + R"({"tool_calls":[{"index":0,)" + tool + R"("arguments":""}}]})" + end);
            add_chunk(c->head, begin + R"({"tool_calls":[{"index":0,"function":{)" + arguments + "}}]}" + end);
        }
        c->streaming = true;
        c->left = call ? 0 : spec.chunks;
        c->interval_ns = spec.interval_us * 1000ull;
        c->chunk = begin + R"({"content":" tok"})" + end;
        c->tail.clear();
        add_chunk(c->tail, begin + R"({},"finish_reason":")" + (call ? "tool_calls" : "stop") + "\"}]}\n\n");
        add_chunk(c->tail, R"(data: {"object":"chat.completion.chunk",)" + string(envelope) + R"("choices":[],)" + string(usage) + "}\n\n");
        add_chunk(c->tail, "data: [DONE]\n\n");
        c->tail += "0\r\n\r\n";
    }

    void tell_stats(Connection* c) {
        rusage used;
        getrusage(RUSAGE_SELF, &used);
        double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
        char text[512];
        int n = snprintf(text, sizeof text,
                         R"({"http":%ld,"chat":%ld,"streamed":%ld,"chunks":%ld,"mcp":%ld,"tools":%ld,"accepted":%ld,"connections_peak":%ld,)"
                         R"("inflight":%ld,"inflight_peak":%ld,"cpu_s":%.4f})",
                         stats.http, stats.chat, stats.streamed, stats.chunks, stats.mcp, stats.tools, stats.accepted, stats.connections_peak,
                         stats.inflight, stats.inflight_peak, cpu);
        respond(c->out, "200 OK", sv(text, n));
    }

    void route(Connection* c, sv method, sv path, sv body) {
        stats.http++;
        if (path.ends_with("/chat/completions")) return chat(c, body);
        if (path == "/mcp" && method == "POST") {
            string answer = rpc(body);
            return respond(c->out, answer.empty() ? "202 Accepted" : "200 OK", answer);
        }
        if (path == "/mcp") return respond(c->out, method == "DELETE" ? "200 OK" : "405 Method Not Allowed", "{}");
        if (path.ends_with("/models")) return respond(c->out, "200 OK", R"({"object":"list","data":[{"id":"kimi-mock","object":"model"}]})");
        if (path == "/stats") return tell_stats(c);
        if (path == "/reset") {
            Stats fresh;
            fresh.connections = fresh.connections_peak = stats.connections;
            fresh.inflight = stats.inflight;
            stats = fresh;
            return respond(c->out, "200 OK", "{}");
        }
        respond(c->out, "404 Not Found", R"({"error":{"message":"not found"}})");
    }

    // Answer every request that is here as a whole, one after another.
    void answer_all(Connection* c) {
        while (!c->busy) {
            sv in(c->in);
            size_t head_end = in.find("\r\n\r\n");
            if (head_end == sv::npos) return;
            sv head = in.substr(0, head_end), line = head.substr(0, head.find("\r\n"));
            size_t length = 0;
            for (size_t at = line.size(); at < head.size();) {
                at += 2;
                size_t end = std::min(head.find("\r\n", at), head.size());
                sv field = head.substr(at, end - at);
                if (field.size() > 15 && strncasecmp(field.data(), "content-length:", 15) == 0) length = strtoul(field.data() + 15, nullptr, 10);
                if (field.size() >= 17 && strncasecmp(field.data(), "connection: close", 17) == 0) c->close_after = true;
                at = end;
            }
            size_t total = head_end + 4 + length;
            if (in.size() < total) return;
            size_t space = line.find(' '), second = line.find(' ', space + 1);
            route(c, line.substr(0, space), line.substr(space + 1, second - space - 1), in.substr(head_end + 4, length));
            c->in.erase(0, total);
            if (!c->out.empty() && !flush(c)) return;
        }
    }

    void accept_all() {
        for (int fd; (fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
            int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            connections[fd] = new Connection(fd, ++generations);
            stats.accepted++;
            peak(stats.connections_peak, ++stats.connections);
            epoll_event event{EPOLLIN, {.fd = fd}};
            epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
        }
    }

    void on_readable(Connection* c) {
        static char buffer[65536];
        for (;;) {
            ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
            if (n < 0 && errno == EAGAIN) break;
            if (n <= 0) return drop(c);
            c->in.append(buffer, n);
        }
        answer_all(c);
    }

public:
    bool listen_on(int port) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) || listen(listener, 4096)) return false;
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
        poll_fd = epoll_create1(0);
        epoll_event event{EPOLLIN, {.fd = listener}};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
        printf("%d\n", ntohs(address.sin_port));
        fflush(stdout);
        return true;
    }

    void serve() {
        std::vector<epoll_event> events(1024);
        for (;;) {
            int wait_ms = -1;
            if (!timers.empty()) {
                u64 now = now_ns(), due = timers.top().due;
                wait_ms = due > now ? (due - now + 999999) / 1000000 : 0;
            }
            int n = epoll_wait(poll_fd, events.data(), events.size(), wait_ms);
            for (int i = 0; i < n; i++) {
                int fd = events[i].data.fd;
                if (fd == listener) { accept_all(); continue; }
                auto it = connections.find(fd);
                if (it == connections.end()) continue;
                if (events[i].events & EPOLLOUT && !flush(it->second)) continue;
                if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(it->second);
            }
            for (u64 now = now_ns(); !timers.empty() && timers.top().due <= now;) {
                Timer timer = timers.top();
                timers.pop();
                on_timer(timer);
            }
        }
    }
};

// The tool server alone, over its pipes: one JSON-RPC message a line.
static int serve_pipes() {
    string line, answer;
    while (std::getline(std::cin, line)) {
        answer = rpc(line);
        if (answer.empty()) continue;
        answer += '\n';
        if (fwrite(answer.data(), 1, answer.size(), stdout) != answer.size()) return 1;
        if (std::cin.rdbuf()->in_avail() <= 0) fflush(stdout);
    }
    return 0;
}

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && sv(argv[1]) == "stdio") {
        std::ios::sync_with_stdio(false);
        return serve_pipes();
    }
    Server server;
    if (!server.listen_on(argc > 1 ? atoi(argv[1]) : 0)) {
        perror("mock: cannot listen");
        return 1;
    }
    server.serve();
}
