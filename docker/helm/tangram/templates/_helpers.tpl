{{- define "tangram.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name $name }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* Labels that never change. Takes (list context component). */}}
{{- define "tangram.selectorLabels" -}}
{{- $context := index . 0 -}}
app.kubernetes.io/name: {{ default $context.Chart.Name $context.Values.nameOverride }}
app.kubernetes.io/instance: {{ $context.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "tangram.labels" -}}
{{- $context := index . 0 -}}
{{ include "tangram.selectorLabels" . }}
app.kubernetes.io/version: {{ $context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $context.Chart.Name $context.Chart.Version }}
{{- end }}

{{- /* The labels of a pod template: without the version, which would restart every pod at an upgrade of the chart. */}}
{{- define "tangram.allPods" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Takes (list context override): `override` has values `repository` and `tag` that replace those of `image`. */}}
{{- define "tangram.image" -}}
{{- $context := index . 0 -}}
{{- $image := $context.Values.image -}}
{{- $override := index . 1 -}}
{{- if $override.repository -}}
{{- printf "%s:%s" $override.repository (default $context.Chart.AppVersion $override.tag) -}}
{{- else if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $context.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{- define "tangram.listenHost" -}}
{{- ternary "::" "0.0.0.0" .Values.ipv6 -}}
{{- end }}

{{- define "tangram.podAddress" -}}
{{- ternary "[$(POD_IP)]" "$(POD_IP)" .Values.ipv6 -}}
{{- end }}

{{- /* Environment variables from a map. Values are quoted: YAML would make numbers of them. */}}
{{- define "tangram.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "tangram.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tangram.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* A pod may not start before its Secret and the database are there, and a busy one answers late. */}}
{{- define "tangram.probes" -}}
startupProbe:
  httpGet: {path: "/livez", port: http}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
readinessProbe:
  httpGet: {path: "/readyz?max_age_s=60", port: http}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: "/livez", port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- /* Where a pod may run. Takes the values of a component. */}}
{{- define "tangram.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "tangram.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Requests that are equal to the limits. */}}
{{- define "tangram.guaranteed" -}}
requests: {{- toYaml . | nindent 2 }}
limits: {{- toYaml . | nindent 2 }}
{{- end }}

{{- define "tangram.databaseSecret" -}}
{{- if .Values.database.cloudNativePG.enabled -}}
{{- printf "%s-db-app" (include "tangram.fullname" .) -}}
{{- else -}}
{{- required "database.existingSecret: set the name of a Secret with the owner's URL, or database.cloudNativePG.enabled" .Values.database.existingSecret -}}
{{- end -}}
{{- end }}

{{- define "tangram.check" -}}
{{- if and .Values.database.cloudNativePG.enabled .Values.database.existingSecret -}}
{{- fail "database.existingSecret: set only one of it and database.cloudNativePG.enabled" -}}
{{- end -}}
{{- if gt (len (include "tangram.fullname" .)) 40 -}}
{{- fail (printf "fullnameOverride: the name %s must have at most 40 characters" (include "tangram.fullname" .)) -}}
{{- end -}}
{{- range $kind := list "cpu" "gpu" "api" -}}
{{- $node := index $.Values $kind -}}
{{- if and $node.enabled (gt (int $node.replicas) (int $node.maxReplicas)) -}}
{{- fail (printf "%s.replicas: %d is more than %s.maxReplicas, %d. Credentials exist for maxReplicas pods" $kind (int $node.replicas) $kind (int $node.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.autoscaling.enabled (gt (int .Values.gateway.autoscaling.minReplicas) (int .Values.gateway.autoscaling.maxReplicas)) -}}
{{- fail "gateway.autoscaling.minReplicas: it must not be more than gateway.autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .Values.gateway.ingress.enabled (not .Values.gateway.ingress.host) -}}
{{- fail "gateway.ingress.host: set the host name" -}}
{{- end -}}
{{- end }}
